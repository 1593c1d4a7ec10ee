/* PNG images in memory (ISO/IEC 15948): all colour types and depths, interlaced or not.

   Results are those of Pillow: alpha and transparency are dropped, 16-bit colours keep the upper byte, 16-bit grey is
   rounded to 8 bits.  All reads are bounds-checked. */

#include "exif.h"
#include "image_readers.h"
#include "inflate.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static const char *const png_damaged = "the PNG image is damaged";

#ifdef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION
int tenon_png_checked = 1; /* whether checksums of chunks are verified: they would hide mutations from fuzzing */
#else
enum { tenon_png_checked = 1 };
#endif

/* ------------------------------------------------------------------------------------------------------- chunks */

typedef struct {
  uint32_t width, height;
  int depth, colour, samples, interlaced; /* samples of a pixel */
  const unsigned char *palette;
  size_t colours;
  unsigned char *data; /* all IDAT chunks */
  size_t data_size;
  int orientation;
} Png;

static uint32_t big_endian(const unsigned char *p) {
  return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static uint32_t png_crc(const unsigned char *data, size_t size) {
  uint32_t crc = 0xffffffffu;
  for (size_t i = 0; i < size; i++) {
    crc ^= data[i];
    for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
  }
  return ~crc;
}

static const char *png_header(Png *png, const unsigned char *data, size_t size) {
  static const uint8_t samples[] = {1, 0, 3, 1, 2, 0, 4};
  static const uint32_t depths[] = {1 << 1 | 1 << 2 | 1 << 4 | 1 << 8 | 1 << 16, 0, 1 << 8 | 1 << 16, 1 << 1 | 1 << 2 | 1 << 4 | 1 << 8,
                                    1 << 8 | 1 << 16, 0, 1 << 8 | 1 << 16};
  if (size != 13) return png_damaged;
  png->width = big_endian(data);
  png->height = big_endian(data + 4);
  png->depth = data[8];
  png->colour = data[9];
  png->interlaced = data[12];
  if (png->colour > 6 || png->depth > 16 || !(depths[png->colour] >> png->depth & 1)) return png_damaged;
  if (data[10] || data[11] || png->interlaced > 1) return png_damaged;
  png->samples = samples[png->colour];
  return NULL;
}

/* Reads all chunks; the caller frees `png->data`. */
static const char *png_chunks(Png *png, const unsigned char *data, size_t size) {
  png->data = malloc(size);
  if (png->data == NULL) return IMAGE_MEMORY;
  for (size_t at = 8;;) {
    if (size - at < 12) return IMAGE_TRUNCATED;
    const size_t length = big_endian(data + at);
    if (length > size - at - 12) return IMAGE_TRUNCATED;
    const unsigned char *type = data + at + 4, *content = data + at + 8;
    const int critical = !(type[0] & 32);
    if (tenon_png_checked && critical && png_crc(type, length + 4) != big_endian(content + length)) return png_damaged;
    if ((at == 8) != (memcmp(type, "IHDR", 4) == 0)) return png_damaged;
    if (at == 8) {
      const char *problem = png_header(png, content, length);
      if (problem != NULL) return problem;
    } else if (memcmp(type, "PLTE", 4) == 0) {
      png->palette = content;
      png->colours = length / 3;
    } else if (memcmp(type, "IDAT", 4) == 0) {
      memcpy(png->data + png->data_size, content, length);
      png->data_size += length;
    } else if (memcmp(type, "eXIf", 4) == 0) {
      png->orientation = tenon_exif_orientation(content, length);
    } else if (memcmp(type, "IEND", 4) == 0) {
      return NULL;
    }
    at += length + 12;
  }
}

/* ------------------------------------------------------------------------------------------------------- pixels */

static unsigned char paeth(int left, int above, int corner) {
  const int estimate = left + above - corner;
  const int a = abs(estimate - left), b = abs(estimate - above), c = abs(estimate - corner);
  return (unsigned char)(a <= b && a <= c ? left : b <= c ? above : corner);
}

/* Undo the filter of a row in place; `above` is NULL for the first one. */
static int png_unfilter(int filter, unsigned char *row, const unsigned char *above, size_t size, size_t step) {
  for (size_t i = 0; i < size; i++) {
    const int left = i < step ? 0 : row[i - step], up = above == NULL ? 0 : above[i];
    const int corner = i < step || above == NULL ? 0 : above[i - step];
    if (filter == 1) row[i] = (unsigned char)(row[i] + left);
    else if (filter == 2) row[i] = (unsigned char)(row[i] + up);
    else if (filter == 3) row[i] = (unsigned char)(row[i] + (left + up) / 2);
    else if (filter == 4) row[i] = (unsigned char)(row[i] + paeth(left, up, corner));
    else if (filter != 0) return 0;
  }
  return 1;
}

/* Sample `k` of pixel `x` in a row, as 8 bits; indices of colours as they are. */
static int png_sample(const Png *png, const unsigned char *row, size_t x, int k) {
  const size_t at = x * (size_t)png->samples + (size_t)k;
  if (png->depth == 8) return row[at];
  if (png->depth == 16) {
    if (png->samples > 1) return row[2 * at];
    return (int)rint((double)(row[2 * at] << 8 | row[2 * at + 1]) / 65535 * 255);
  }
  const size_t bit = at * (size_t)png->depth;
  const int value = row[bit / 8] >> (8 - png->depth - (int)(bit % 8)) & ((1 << png->depth) - 1);
  return png->colour == 3 ? value : value * 255 / ((1 << png->depth) - 1);
}

static void png_put(const Png *png, const unsigned char *row, size_t x, unsigned char *to) {
  if (png->colour == 3) {
    const size_t index = (size_t)png_sample(png, row, x, 0);
    if (index >= png->colours) memset(to, (int)index, 3); /* Pillow's palettes begin as a ramp */
    else memcpy(to, png->palette + 3 * index, 3);
    return;
  }
  const int channels = png->samples > 2 ? 3 : 1;
  for (int k = 0; k < channels; k++) to[k] = (unsigned char)png_sample(png, row, x, k);
}

/* The part of the pixels that a pass of Adam7 has: every `dx`-th column from `x`, every `dy`-th row from `y`. */
typedef struct {
  uint32_t x, y, dx, dy;
} PngPass;

static const PngPass png_passes[] = {{0, 0, 8, 8}, {4, 0, 8, 8}, {0, 4, 4, 8}, {2, 0, 4, 4},
                                     {0, 2, 2, 4}, {1, 0, 2, 2}, {0, 1, 1, 2}, {0, 0, 1, 1}};

static size_t png_row_bytes(const Png *png, uint32_t columns) {
  return ((size_t)columns * (size_t)png->samples * (size_t)png->depth + 7) / 8;
}

static uint32_t png_extent(uint32_t size, uint32_t from, uint32_t step) {
  return size > from ? (size - from + step - 1) / step : 0;
}

static size_t png_pass_bytes(const Png *png, const PngPass *pass) {
  const uint32_t columns = png_extent(png->width, pass->x, pass->dx), rows = png_extent(png->height, pass->y, pass->dy);
  return columns == 0 ? 0 : (size_t)rows * (png_row_bytes(png, columns) + 1);
}

static const char *png_take_pass(const Png *png, const PngPass *pass, unsigned char *raw, Image *image) {
  const uint32_t columns = png_extent(png->width, pass->x, pass->dx), rows = png_extent(png->height, pass->y, pass->dy);
  const size_t bytes = png_row_bytes(png, columns), step = (size_t)(png->samples * png->depth + 7) / 8;
  const size_t channels = (size_t)image->channels;
  for (uint32_t i = 0; columns > 0 && i < rows; i++, raw += bytes + 1) {
    if (!png_unfilter(raw[0], raw + 1, i == 0 ? NULL : raw - bytes, bytes, step)) return png_damaged;
    unsigned char *line = image->pixels + ((size_t)pass->y + (size_t)i * pass->dy) * (size_t)image->width * channels;
    for (uint32_t j = 0; j < columns; j++)
      png_put(png, raw + 1, j, line + ((size_t)pass->x + (size_t)j * pass->dx) * channels);
  }
  return NULL;
}

static const char *png_pixels(const Png *png, Image *image) {
  if (png->width > IMAGE_LARGEST || png->height > IMAGE_LARGEST) return "the image has an impossible size";
  if (png->colour == 3 && png->palette == NULL) return png_damaged;
  const PngPass *first = png->interlaced ? png_passes : png_passes + 7;
  const PngPass *end = png->interlaced ? png_passes + 7 : png_passes + 8;
  size_t bytes = 0;
  for (const PngPass *pass = first; pass < end; pass++) bytes += png_pass_bytes(png, pass);
  if (bytes / MOST_INFLATION > png->data_size) return IMAGE_TRUNCATED; /* before memory is taken for it */
  image->width = (long)png->width;
  image->height = (long)png->height;
  image->channels = png->colour == 3 || png->samples > 2 ? 3 : 1;
  const char *problem = tenon_image_allocate(image);
  if (problem != NULL) return problem;
  unsigned char *raw = malloc(bytes);
  if (raw == NULL) return IMAGE_MEMORY;
  if (!tenon_inflate(png->data, png->data_size, raw, bytes)) problem = png_damaged;
  unsigned char *at = raw;
  for (const PngPass *pass = first; pass < end && problem == NULL; at += png_pass_bytes(png, pass), pass++)
    problem = png_take_pass(png, pass, at, image);
  free(raw);
  return problem;
}

const char *tenon_read_png(const unsigned char *data, size_t size, Image *image) {
  Png png = {0};
  const char *problem = png_chunks(&png, data, size);
  if (problem == NULL) problem = png_pixels(&png, image);
  free(png.data);
  return problem == NULL ? tenon_turn_image(image, png.orientation) : problem;
}
