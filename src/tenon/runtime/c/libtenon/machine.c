/* Whether this machine executes code for a target.  target_rows.h is written from targets/ for the family of machines
   that this library is compiled for: TARGET_ROW(name, features) of each target, with a "?" before the features of those
   that are chosen by name only: devices, and code that is tuned for one processor.

   Tables here and elsewhere hold texts, not pointers to them, each of which takes 32 more bytes of a library. */

#include "processor.h"

#include <stdlib.h>
#include <string.h>

/* Features as the system lists them, separated by blanks. */
static const char rows[] =
#define TARGET_ROW(name, features) name "\0" features "\0"
#include "target_rows.h"
#undef TARGET_ROW
    ;

static int lists(const char *text, const char *word, size_t length) {
  for (const char *at = text; (at = strstr(at, word)) != NULL; at++)
    if ((at == text || at[-1] == ' ') && (at[length] == ' ' || at[length] == 0 || at[length] == '\n')) return 1;
  return 0;
}

/* Asked of the system once: that takes it as long as everything else that opening a small bundle does. */
static const char *own_features(void) {
  enum { ROOM = 8192 };
  static char *known;
  char *none = NULL, *text = __atomic_load_n(&known, __ATOMIC_ACQUIRE);
  if (text != NULL) return text;
  if ((text = malloc(ROOM)) == NULL) return "";
  tn_processor_features(text, ROOM);
  if (__atomic_compare_exchange_n(&known, &none, text, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) return text;
  free(text); /* another thread was first */
  return none;
}

static int count_features(const char *wanted) {
  const char *present = *wanted != 0 ? own_features() : "";
  int count = 0;
  while (*wanted != 0) {
    char word[32];
    const size_t length = strcspn(wanted, " ");
    if (length >= sizeof word) return -1;
    memcpy(word, wanted, length);
    word[length] = 0;
    if (!lists(present, word, length)) return -1;
    count++;
    wanted += length + (wanted[length] == ' ');
  }
  return count;
}

int tn_target_features(const char *target) {
  for (const char *row = rows; *row != 0;) {
    const char *features = row + strlen(row) + 1;
    if (strcmp(row, target) == 0) {
      const int count = count_features(features + (*features == '?'));
      return count < 0 ? count : *features == '?' ? 0 : count + 1;
    }
    row = features + strlen(features) + 1;
  }
  return -1;
}
