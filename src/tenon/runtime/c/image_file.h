/* Image files in memory: PGM, PPM, BMP, PNG and JPEG, with the pixels that Pillow reads. */

#ifndef TENON_IMAGE_FILE_H
#define TENON_IMAGE_FILE_H

#include <stddef.h>
#include "image.h"

int tenon_is_image(const unsigned char *data, size_t size);

/* Read what tenon_is_image accepts.  Returns NULL, or an error message.  The caller frees the pixels. */
const char *tenon_read_image(const unsigned char *data, size_t size, Image *image);

#endif
