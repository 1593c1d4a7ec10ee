/* Images in memory. */

#ifndef TENON_IMAGE_H
#define TENON_IMAGE_H

enum { IMAGE_LARGEST = 1 << 16 }; /* pixels along a side */

/* `channels` is 1 (grey) or 3 (red, green, blue), 8 bits each, rows from the top. */
typedef struct {
  long width, height;
  int channels;
  unsigned char *pixels;
} Image;

/* Error messages of several functions. */
#define IMAGE_MEMORY "not enough memory for the image"
#define IMAGE_TRUNCATED "the image is truncated"

/* Allocate the pixels; returns NULL, or an error message. */
const char *tenon_image_allocate(Image *image);

#endif
