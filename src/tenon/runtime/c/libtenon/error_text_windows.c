/* Windows: the memory of each thread for the text of its last error. */

#include "errors.h"

#include <windows.h>

#include <stdlib.h>

static DWORD slot = TLS_OUT_OF_INDEXES;
static INIT_ONCE slot_once = INIT_ONCE_STATIC_INIT;

static BOOL CALLBACK make_slot(PINIT_ONCE once, PVOID parameter, PVOID *context) {
  (void)once, (void)parameter, (void)context;
  slot = TlsAlloc();
  return TRUE;
}

char *tn_error_text(void) {
  InitOnceExecuteOnce(&slot_once, make_slot, NULL, NULL);
  if (slot == TLS_OUT_OF_INDEXES) return NULL;
  char *text = TlsGetValue(slot);
  if (text == NULL && (text = calloc(1, ERROR_TEXT)) != NULL) TlsSetValue(slot, text);
  return text;
}
