/* Image preprocessing: the same results as engine/image.py with Pillow, bit for bit. */

#ifndef TENON_PREPROCESS_H
#define TENON_PREPROCESS_H

#include "image.h"
#include "tables.h"

/* The part (left, top, right, bottom) of an image that the network sees, in pixels of the image. */
void tenon_image_view(const TenonPreprocessing *how, long height, long width, double *box);

/* The image in the input's size and channels: bytes [height, width, channels] in RGB order, for the caller to free.
   Returns NULL, or an error message. */
const char *tenon_fit_image(Image *image, const TenonPreprocessing *how, unsigned char **fitted);

/* Store what tenon_fit_image made as the elements of an input; returns 0 for an unsupported type. */
int tenon_put_pixels(const unsigned char *fitted, const TenonPreprocessing *how, const char *type, unsigned char *to);

#endif
