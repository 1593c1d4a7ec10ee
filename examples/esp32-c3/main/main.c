/* Classifies the image in seven.h and prints the answer on the console. */

#include <stdio.h>

#include "classify.h"
#include "seven.h"

void app_main(void) {
  int percent;
  const int digit = classify(seven, &percent);
  if (digit < 0) {
    printf("the network failed\n");
  } else {
    printf("digit %d, probability %d %%\n", digit, percent);
  }
}
