/* Classifies the image in seven.h and tells the answer over the serial port. */

#include "classify.h"
#include "serial.h"
#include "seven.h"

int main(void) {
  int percent, digit;
  serial_open();
  digit = classify(seven, &percent);
  if (digit < 0) {
    serial_text("the network failed\r\n");
    return 1;
  }
  serial_text("digit ");
  serial_number((unsigned)digit);
  serial_text(", probability ");
  serial_number((unsigned)percent);
  serial_text(" %\r\n");
  return 0;
}
