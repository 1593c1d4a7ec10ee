/* Lists of paths in environment variables. */

#ifndef TENON_PATH_LIST_H
#define TENON_PATH_LIST_H

#include <stddef.h>

/* The next entry of a list of paths, separated as in PATH: 1; 0 at the end (also of a NULL), -1 for one that there is no
   room for. */
int tn_next_of_list(const char **list, char *entry, size_t room);

#endif
