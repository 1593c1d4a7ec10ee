/* Classifies the image in seven.h. */

#include <stdio.h>

#include "classify.h"
#include "seven.h"

int main(void) {
  int percent;
  const int digit = classify(seven, &percent);
  if (digit < 0) return 1;
  printf("digit %d, probability %d %%\n", digit, percent);
  return 0;
}
