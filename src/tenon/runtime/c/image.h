/* PGM, PPM (plain and binary) and BMP (8, 24 and 32 bits, uncompressed) images in memory.

   All reads are bounds-checked; sizes are checked before they are multiplied. */

#ifndef TENON_IMAGE_H
#define TENON_IMAGE_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { IMAGE_LARGEST = 1 << 16 }; /* pixels along a side */

/* `channels` is 1 (grey) or 3 (red, green, blue), 8 bits each, rows from the top. */
typedef struct {
  long width, height;
  int channels;
  unsigned char *pixels;
} Image;

static const char *const image_memory = "not enough memory for the image";
static const char *const image_truncated = "the image is truncated";

/* Allocate the pixels; returns NULL, or an error message. */
static const char *image_allocate(Image *image) {
  if (image->width < 1 || image->height < 1 || image->width > IMAGE_LARGEST || image->height > IMAGE_LARGEST)
    return "the image has an impossible size";
  image->pixels = malloc((size_t)image->width * (size_t)image->height * (size_t)image->channels);
  return image->pixels == NULL ? image_memory : NULL;
}

typedef struct {
  const unsigned char *at, *end;
} Cursor;

/* The next number of a Netpbm header or plain raster, past white space and comments; -1 if there is none. */
static long netpbm_number(Cursor *c) {
  while (c->at < c->end) {
    if (*c->at == '#') {
      while (c->at < c->end && *c->at != '\n') c->at++;
    } else if (strchr(" \t\r\n\v\f", *c->at) == NULL || *c->at == 0) {
      break;
    } else {
      c->at++;
    }
  }
  long value = -1;
  for (; c->at < c->end && *c->at >= '0' && *c->at <= '9'; c->at++) {
    value = (value < 0 ? 0 : value * 10) + (*c->at - '0');
    if (value > 1000000) return -1;
  }
  return value;
}

/* Scale to 0..255, ties to even; grey with more than 8 bits is scaled via 16 bits, as other readers do. */
static unsigned char netpbm_byte(long value, long largest, int grey) {
  if (largest == 255) return (unsigned char)value;
  if (!grey || largest < 256) return (unsigned char)rint((double)value / (double)largest * 255);
  const double wide = largest == 65535 ? (double)value : rint((double)value / (double)largest * 65535);
  return (unsigned char)rint(wide / 65535 * 255);
}

static const char *read_netpbm(const unsigned char *data, size_t size, Image *image) {
  Cursor c = {data + 2, data + size};
  const int plain = data[1] == '2' || data[1] == '3';
  image->channels = data[1] == '2' || data[1] == '5' ? 1 : 3;
  image->width = netpbm_number(&c);
  image->height = netpbm_number(&c);
  const long largest = netpbm_number(&c);
  if (image->width < 0 || image->height < 0 || largest < 0) return "the image's header is damaged or truncated";
  if (largest < 1 || largest > 65535) return "the image's largest value is out of range";
  if (c.at >= c.end) return image_truncated;
  c.at++; /* the one white space before a binary raster */
  const size_t width = largest > 255 ? 2 : 1;
  /* Extents are at most a million each, so the product fits 64 bits; checked before it is made a size_t. */
  const uint64_t values = (uint64_t)image->width * (uint64_t)image->height * (uint64_t)image->channels;
  if (values * (plain ? 1 : width) > (uint64_t)(c.end - c.at)) return image_truncated;
  const char *problem = image_allocate(image);
  if (problem != NULL) return problem;
  for (uint64_t i = 0; i < values; i++) {
    long value;
    if (plain) {
      value = netpbm_number(&c);
    } else {
      value = width == 1 ? c.at[i] : c.at[2 * i] << 8 | c.at[2 * i + 1];
    }
    if (value < 0) return image_truncated;
    if (value > largest) return "the image has a value above its stated maximum";
    image->pixels[i] = netpbm_byte(value, largest, image->channels == 1);
  }
  return NULL;
}

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

static const char *read_bmp(const unsigned char *data, size_t size, Image *image) {
  if (size < 54) return image_truncated;
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
  if (colours > 256 || palette + colours * 4 > size) return image_truncated;
  if (raster > size || stride * (uint64_t)height > size - raster) return image_truncated;
  image->width = (long)width;
  image->height = (long)height;
  image->channels = 3;
  const char *problem = image_allocate(image);
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

#endif
