/* The output of a classifier as a table. */

#include "classes.h"
#include "elements.h"
#include "labels.h"
#include "tables.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int tenon_lists_classes(const TenonPort *port) {
  const size_t count = tenon_element_count(port);
  return tenon_classes.listed && count > 1 && tenon_label_of((long)count - 1) != NULL && tenon_label_of((long)count) == NULL;
}

/* The number that an element stands for. */
static double score(const TenonPort *port, size_t at) {
  return tenon_classes.scale * (tenon_element(tenon_mutable, port, at) - tenon_classes.zero);
}

static size_t best_of(const TenonPort *port, size_t count, const char *used) {
  size_t best = count;
  for (size_t i = 0; i < count; i++)
    if (!used[i] && (best == count || score(port, i) > score(port, best))) best = i;
  return best;
}

int tenon_print_classes(const TenonPort *port, size_t top) {
  enum { LONGEST = 32 };
  const size_t count = tenon_element_count(port), rows = top < count ? top : count;
  char *used = calloc(count, 1), (*texts)[LONGEST] = malloc((rows + 1) * sizeof *texts);
  size_t *order = malloc((rows + 1) * sizeof *order);
  if (used == NULL || texts == NULL || order == NULL) {
    free(used);
    free(texts);
    free(order);
    return 0;
  }
  int name = (int)strlen("class"), number = (int)strlen("score");
  for (size_t k = 0; k < rows; k++) {
    order[k] = best_of(port, count, used);
    used[order[k]] = 1;
    snprintf(texts[k], LONGEST, "%.3f", score(port, order[k]));
    const int wide = tenon_characters(tenon_label_of((long)order[k])), digits = (int)strlen(texts[k]);
    if (wide > name) name = wide;
    if (digits > number) number = digits;
  }
  if (rows > 0) printf("%s%*s  %*s\n", "class", name - (int)strlen("class"), "", number, "score");
  for (size_t k = 0; k < rows; k++) {
    const char *label = tenon_label_of((long)order[k]);
    printf("%s%*s  %*s\n", label, name - tenon_characters(label), "", number, texts[k]);
  }
  free(used);
  free(texts);
  free(order);
  return 1;
}
