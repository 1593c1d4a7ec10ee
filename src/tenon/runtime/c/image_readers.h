/* Readers of image files in memory.  They return NULL, or an error message; the caller frees the pixels. */

#ifndef TENON_IMAGE_READERS_H
#define TENON_IMAGE_READERS_H

#include <stddef.h>
#include "image.h"

const char *tenon_read_netpbm(const unsigned char *data, size_t size, Image *image);
const char *tenon_read_bmp(const unsigned char *data, size_t size, Image *image);
const char *tenon_read_png(const unsigned char *data, size_t size, Image *image);
const char *tenon_read_jpeg(const unsigned char *data, size_t size, Image *image);

#endif
