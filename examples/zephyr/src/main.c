/* Classifies the image in seven.h and prints the answer on Zephyr's console. */

#include <zephyr/sys/printk.h>

#include "classify.h"
#include "seven.h"

int main(void) {
  int percent;
  const int digit = classify(seven, &percent);
  if (digit < 0) {
    printk("the network failed\n");
  } else {
    printk("digit %d, probability %d %%\n", digit, percent);
  }
  return 0;
}
