/* Linux, Android, macOS: the memory of each thread for the text of its last error. */

#include "errors.h"

#include <pthread.h>
#include <stdlib.h>

static pthread_key_t key;
static pthread_once_t key_once = PTHREAD_ONCE_INIT;
static int key_status = -1;

static void make_key(void) { key_status = pthread_key_create(&key, free); }

char *tn_error_text(void) {
  if (pthread_once(&key_once, make_key) != 0 || key_status != 0) return NULL;
  char *text = pthread_getspecific(key);
  if (text == NULL && (text = calloc(1, ERROR_TEXT)) != NULL) pthread_setspecific(key, text);
  return text;
}
