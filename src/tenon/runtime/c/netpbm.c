/* PGM and PPM images in memory, plain and binary.  All reads are bounds-checked; sizes are checked before they are
   multiplied. */

#include "image_readers.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

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

const char *tenon_read_netpbm(const unsigned char *data, size_t size, Image *image) {
  Cursor c = {data + 2, data + size};
  const int plain = data[1] == '2' || data[1] == '3';
  image->channels = data[1] == '2' || data[1] == '5' ? 1 : 3;
  image->width = netpbm_number(&c);
  image->height = netpbm_number(&c);
  const long largest = netpbm_number(&c);
  if (image->width < 0 || image->height < 0 || largest < 0) return "the image's header is damaged or truncated";
  if (largest < 1 || largest > 65535) return "the image's largest value is out of range";
  if (c.at >= c.end) return IMAGE_TRUNCATED;
  c.at++; /* the one white space before a binary raster */
  const size_t width = largest > 255 ? 2 : 1;
  /* Extents are at most a million each, so the product fits 64 bits; checked before it is made a size_t. */
  const uint64_t values = (uint64_t)image->width * (uint64_t)image->height * (uint64_t)image->channels;
  if (values * (plain ? 1 : width) > (uint64_t)(c.end - c.at)) return IMAGE_TRUNCATED;
  const char *problem = tenon_image_allocate(image);
  if (problem != NULL) return problem;
  for (uint64_t i = 0; i < values; i++) {
    long value;
    if (plain) {
      value = netpbm_number(&c);
    } else {
      value = width == 1 ? c.at[i] : c.at[2 * i] << 8 | c.at[2 * i + 1];
    }
    if (value < 0) return IMAGE_TRUNCATED;
    if (value > largest) return "the image has a value above its stated maximum";
    image->pixels[i] = netpbm_byte(value, largest, image->channels == 1);
  }
  return NULL;
}
