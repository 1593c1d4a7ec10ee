/* Classifies the image in seven.h and prints the answer on the USB serial port, every second. */

#include <stdio.h>

#include "classify.h"
#include "pico/stdlib.h"
#include "seven.h"

int main(void) {
  stdio_init_all();
  for (;;) {
    int percent;
    const uint64_t began = time_us_64();
    const int digit = classify(seven, &percent);
    const int time = (int)(time_us_64() - began);
    if (digit < 0) {
      printf("the network failed\n");
    } else {
      printf("digit %d, probability %d %%, in %d us\n", digit, percent, time);
    }
    sleep_ms(1000);
  }
}
