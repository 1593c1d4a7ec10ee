/* The output of a classifier as a table. */

#ifndef TENON_CLASSES_H
#define TENON_CLASSES_H

#include <stddef.h>
#include "network.h"

/* Whether an output is one score for each of the names that are known. */
int tenon_lists_classes(const TenonPort *port);

/* The `top` classes with the highest scores, as `tenon run` prints them.  Returns 0 if there is not enough memory. */
int tenon_print_classes(const TenonPort *port, size_t top);

#endif
