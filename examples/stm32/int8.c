/* Classifies the image in seven.h by a network of int8, without a number in floating point, and tells the answer over
   the serial port: `tenon quantize digits.onnx --data samples.npy --target stm32f4 -o digits.tflite`, and
   `tenon compile digits.tflite --target stm32f4 --io integer --emit tar -o stm32`. */

#include "digits_weights.h"
#include "serial.h"
#include "seven.h"

TENON_MEM_ALIGN(64) static uint8_t tensors[DIGITS_MUTABLE_MEM_SIZE];
TENON_MEM_ALIGN(64) static uint8_t activations[DIGITS_ACTIVATIONS_MEM_SIZE];

/* A scale as an integer, whose calculation is the compiler's. */
enum { PER_MILLE = (int)(DIGITS_probabilities_SCALE * 65536 * 1000) };

/* The integer that stands for a pixel from 0 to 255: the scale is the pixel's step, or a fraction of it. */
static int8_t quantised(int pixel) {
  enum { STEPS = (int)(65536 / DIGITS_image_SCALE) };
  const int q = (int)(((int64_t)pixel * STEPS + 32768) >> 16) + DIGITS_image_ZERO_POINT;
  return (int8_t)(q < -128 ? -128 : q > 127 ? 127 : q);
}

int main(void) {
  int8_t *image = (int8_t *)TENON_GET_ADDR(tensors, DIGITS_image);
  const int8_t *probabilities = (const int8_t *)TENON_GET_ADDR(tensors, DIGITS_probabilities);
  int best = 0;
  serial_open();
  for (int i = 0; i < DIGITS_image_ELEMENTS; i++) image[i] = quantised(seven[i]);
  if (digits_run(tensors, activations) != 0) {
    serial_text("the network failed\r\n");
    return 1;
  }
  for (int i = 1; i < DIGITS_probabilities_ELEMENTS; i++) {
    if (probabilities[i] > probabilities[best]) best = i;
  }
  const int64_t steps = probabilities[best] - (DIGITS_probabilities_ZERO_POINT);
  serial_text("digit ");
  serial_number((unsigned)best);
  serial_text(", probability ");
  serial_number((unsigned)((steps * PER_MILLE / 65536 + 5) / 10));
  serial_text(" %\r\n");
  return 0;
}
