/* BMP images in memory: 8, 24 and 32 bits, uncompressed.  All reads are bounds-checked; sizes are checked before they are
   multiplied. */

#include "image_readers.h"

#include <stdint.h>

static uint32_t bmp_u32(const unsigned char *p) {
  return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static int64_t bmp_i32(const unsigned char *p) {
  const uint32_t u = bmp_u32(p);
  return u < 0x80000000u ? (int64_t)u : (int64_t)u - 0x100000000;
}

/* Bit masks of a 32-bit bitmap are taken only in the usual order: blue, green, red, unused. */
static int bmp_usual_masks(const unsigned char *data, size_t size) {
  return size >= 66 && bmp_u32(data + 54) == 0xff0000 && bmp_u32(data + 58) == 0xff00 && bmp_u32(data + 62) == 0xff;
}

const char *tenon_read_bmp(const unsigned char *data, size_t size, Image *image) {
  if (size < 54) return IMAGE_TRUNCATED;
  const uint64_t raster = bmp_u32(data + 10), header = bmp_u32(data + 14);
  const int64_t width = bmp_i32(data + 18), signed_height = bmp_i32(data + 22);
  const int bits = data[28] | data[29] << 8;
  const uint32_t compression = bmp_u32(data + 30);
  if (header < 40) return "the bitmap is older than Windows 3: save it again";
  if (compression != 0 && !(compression == 3 && bits == 32 && bmp_usual_masks(data, size)))
    return "the bitmap is compressed or has unusual masks: save it with 24 bits per pixel";
  if (bits != 8 && bits != 24 && bits != 32) return "the bitmap does not have 8, 24 or 32 bits per pixel";
  const int64_t height = signed_height < 0 ? -signed_height : signed_height;
  if (width < 1 || width > IMAGE_LARGEST || height < 1 || height > IMAGE_LARGEST)
    return "the image has an impossible size";
  const uint64_t stride = ((uint64_t)width * (uint64_t)bits + 31) / 32 * 4;
  const uint64_t colours = bits == 8 ? (bmp_u32(data + 46) ? bmp_u32(data + 46) : 256) : 0;
  const uint64_t palette = 14 + header;
  if (colours > 256 || palette + colours * 4 > size) return IMAGE_TRUNCATED;
  if (raster > size || stride * (uint64_t)height > size - raster) return IMAGE_TRUNCATED;
  image->width = (long)width;
  image->height = (long)height;
  image->channels = 3;
  const char *problem = tenon_image_allocate(image);
  if (problem != NULL) return problem;
  unsigned char *to = image->pixels;
  for (int64_t y = 0; y < height; y++) {
    const uint64_t row = (uint64_t)(signed_height < 0 ? y : height - 1 - y);
    const unsigned char *from = data + raster + row * stride;
    for (int64_t x = 0; x < width; x++, to += 3) {
      const unsigned char *p = from + x * (bits / 8);
      if (bits == 8) {
        if (*p >= colours) return "the bitmap uses a colour outside of its palette";
        p = data + palette + *p * 4;
      }
      to[0] = p[2];
      to[1] = p[1];
      to[2] = p[0];
    }
  }
  return NULL;
}
