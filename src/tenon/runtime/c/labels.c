/* Names of classes. */

#include "labels.h"
#include "tables.h"

#include <stdlib.h>
#include <string.h>

static const char *const *labels_in_use; /* NULL: the recorded ones */
static long labels_count;

const char *tenon_label_of(long number) {
  const long count = labels_in_use == NULL ? tenon_label_count : labels_count;
  if (number < 0 || number >= count) return NULL;
  return (labels_in_use == NULL ? tenon_labels : labels_in_use)[number];
}

int tenon_characters(const char *text) {
  int count = 0;
  for (; *text; text++) count += (*text & 0xc0) != 0x80;
  return count;
}

int tenon_split_labels(const unsigned char *data, size_t size) {
  char *text = malloc(size + 1);
  const char **lines = malloc((size + 1) * sizeof *lines);
  if (text == NULL || lines == NULL) return 0;
  memcpy(text, data, size);
  text[size] = 0;
  labels_count = 0;
  for (size_t at = 0; at < size;) {
    const size_t length = strcspn(text + at, "\n");
    lines[labels_count++] = text + at;
    if (length > 0 && text[at + length - 1] == '\r') text[at + length - 1] = 0;
    text[at + length] = 0;
    at += length + 1;
  }
  labels_in_use = lines;
  return 1;
}
