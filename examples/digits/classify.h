/* The network of digits.onnx for C programs: digits_weights.h, which comes with every package of
   `tenon compile --emit`, declares the network and its weights. */

#include "digits_weights.h"

/* The class of an image of 8 x 8 pixels, and its probability in percent; -1 if the network failed. */
static int classify(const unsigned char *pixels, int *percent) {
  TENON_MEM_ALIGN(64) static uint8_t tensors[DIGITS_MUTABLE_MEM_SIZE];
  TENON_MEM_ALIGN(64) static uint8_t activations[DIGITS_ACTIVATIONS_MEM_SIZE];
  float *image = (float *)TENON_GET_ADDR(tensors, DIGITS_image);
  const float *probabilities = (const float *)TENON_GET_ADDR(tensors, DIGITS_probabilities);
  int best = 0;
  for (int i = 0; i < DIGITS_image_ELEMENTS; i++) image[i] = pixels[i];
  if (digits_run(tensors, activations) != 0) return -1;
  for (int i = 1; i < DIGITS_probabilities_ELEMENTS; i++) {
    if (probabilities[i] > probabilities[best]) best = i;
  }
  *percent = (int)(100 * probabilities[best] + 0.5f);
  return best;
}
