/* Names of classes: those that were recorded when compiling, or lines of a file. */

#ifndef TENON_LABELS_H
#define TENON_LABELS_H

#include <stddef.h>

/* The name of a class in UTF-8, or NULL. */
const char *tenon_label_of(long number);

/* How many characters a text in UTF-8 has. */
int tenon_characters(const char *text);

/* Use the lines of a text (LF or CRLF) from now on.  Returns 0 if there is not enough memory. */
int tenon_split_labels(const unsigned char *data, size_t size);

#endif
