/* The orientation of photos, as cameras record it in Exif metadata (CIPA DC-008). */

#include "exif.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static uint32_t exif_number(const unsigned char *p, int bytes, int little) {
  uint32_t value = 0;
  for (int i = 0; i < bytes; i++) value = value << 8 | p[little ? bytes - 1 - i : i];
  return value;
}

int tenon_exif_orientation(const unsigned char *tiff, size_t size) {
  enum { ORIENTATION = 0x112, SHORT = 3 };
  if (size < 8 || (memcmp(tiff, "II*\0", 4) != 0 && memcmp(tiff, "MM\0*", 4) != 0)) return 1;
  const int little = tiff[0] == 'I';
  const size_t at = exif_number(tiff + 4, 4, little);
  if (at > size || size - at < 2) return 1;
  const size_t entries = exif_number(tiff + at, 2, little);
  for (size_t i = 0; i < entries && 12 * i + 14 <= size - at; i++) {
    const unsigned char *entry = tiff + at + 2 + 12 * i;
    if (exif_number(entry, 2, little) != ORIENTATION || exif_number(entry + 2, 2, little) != SHORT) continue;
    const uint32_t value = exif_number(entry + 8, 2, little);
    return value >= 1 && value <= 8 ? (int)value : 1;
  }
  return 1;
}

const char *tenon_turn_image(Image *image, int orientation) {
  if (orientation < 2) return NULL;
  const long height = image->height, width = image->width;
  const int swapped = orientation > 4;
  const int from_right = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
  const int from_below = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
  Image turned = {swapped ? height : width, swapped ? width : height, image->channels, NULL};
  const char *problem = tenon_image_allocate(&turned);
  if (problem != NULL) return problem;
  const size_t c = (size_t)image->channels;
  unsigned char *to = turned.pixels;
  for (long y = 0; y < turned.height; y++)
    for (long x = 0; x < turned.width; x++, to += c) {
      const long across = swapped ? y : x, down = swapped ? x : y;
      const long column = from_right ? width - 1 - across : across, row = from_below ? height - 1 - down : down;
      memcpy(to, image->pixels + ((size_t)row * (size_t)width + (size_t)column) * c, c);
    }
  free(image->pixels);
  *image = turned;
  return NULL;
}
