/* Image files in memory: PGM, PPM, BMP, PNG and JPEG, with the pixels that Pillow reads. */

#ifndef TENON_IMAGE_FILE_H
#define TENON_IMAGE_FILE_H

#include "image.h"
#ifndef TENON_NO_IMAGES
#include "jpeg.h"
#include "png.h"
#endif

static int is_image(const unsigned char *data, size_t size) {
  if (size < 3) return 0;
  if (data[0] == 'B' && data[1] == 'M') return 1;
  if (data[0] == 0xff && data[1] == 0xd8 && data[2] == 0xff) return 1;
  if (size >= 8 && memcmp(data, "\x89PNG\r\n\x1a\n", 8) == 0) return 1;
  return data[0] == 'P' && strchr("2356", data[1]) != NULL && data[1] != 0;
}

/* Returns NULL, or an error message.  The caller frees the pixels.  With TENON_NO_IMAGES there are no decoders: no
   input takes an image. */
static const char *read_image(const unsigned char *data, size_t size, Image *image) {
#ifdef TENON_NO_IMAGES
  (void)data, (void)size, (void)image;
  return "no input takes an image";
#else
  if (data[0] == 'B') return read_bmp(data, size, image);
  if (data[0] == 0xff) return read_jpeg(data, size, image);
  return data[0] == 0x89 ? read_png(data, size, image) : read_netpbm(data, size, image);
#endif
}

#endif
