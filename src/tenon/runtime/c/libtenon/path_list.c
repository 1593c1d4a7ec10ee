/* Lists of paths in environment variables. */

#include "path_list.h"

#include <string.h>

int tn_next_of_list(const char **list, char *entry, size_t room) {
#if defined(_WIN32)
  const char separator = ';';
#else
  const char separator = ':';
#endif
  while (*list != NULL && **list) {
    const char *begin = *list, *end = strchr(begin, separator);
    const size_t length = end != NULL ? (size_t)(end - begin) : strlen(begin);
    *list = begin + length + (end != NULL);
    if (length == 0) continue;
    if (length >= room) return -1;
    memcpy(entry, begin, length);
    entry[length] = 0;
    return 1;
  }
  return 0;
}
