/* From the coefficients of JPEG images to pixels: inverse DCT, upsampling and colours, with the roundings of libjpeg. */

#ifndef TENON_JPEG_SAMPLES_H
#define TENON_JPEG_SAMPLES_H

#include <stddef.h>
#include <stdint.h>

/* The 8 x 8 samples of a block. */
void tenon_jpeg_idct(const int16_t *block, const uint16_t *quantization, unsigned char *to, size_t stride);

/* The samples of a component, of which width x height belong to the image. */
typedef struct {
  const unsigned char *samples;
  size_t stride;
  long width, height;
} JpegPlane;

/* Enlarge a component `h` and `v` times to width x height samples, `step` bytes apart. */
void tenon_jpeg_upsample(const JpegPlane *plane, int h, int v, long width, long height, unsigned char *to, size_t step);

/* Convert pixels in place from YCbCr to red, green, blue. */
void tenon_jpeg_to_rgb(unsigned char *pixels, size_t count);

#endif
