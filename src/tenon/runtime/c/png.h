/* PNG images in memory (ISO/IEC 15948): all colour types and depths, interlaced or not.

   Results are those of Pillow: alpha and transparency are dropped, 16-bit colours keep the upper byte, 16-bit grey is
   rounded to 8 bits.  All reads are bounds-checked. */

#ifndef TENON_PNG_H
#define TENON_PNG_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "exif.h"
#include "image.h"

static const char *const png_damaged = "the PNG image is damaged";

#ifdef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION
static int png_checked = 1; /* whether checksums of chunks are verified: they would hide mutations from fuzzing */
#else
enum { png_checked = 1 };
#endif

/* ------------------------------------------------------------------------------------- inflate (RFC 1950, 1951) */

enum { LONGEST_CODE = 15, LITERALS = 288, DISTANCES = 30, END_OF_BLOCK = 256, LONGEST_ALPHABET = 320, MOST_INFLATION = 1032 };

typedef struct {
  const unsigned char *at, *end;
  unsigned char *to;
  size_t size, made;
  uint32_t bits;
  int bit_count, failed;
} Inflater;

/* A canonical Huffman code: how many codes of each length, and the symbols in the order of their codes. */
typedef struct {
  uint16_t count[LONGEST_CODE + 1], symbols[LONGEST_ALPHABET];
} InflateCode;

static uint32_t inflate_bits(Inflater *s, int count) {
  while (s->bit_count < count) {
    if (s->at == s->end) {
      s->failed = 1;
      return 0;
    }
    s->bits |= (uint32_t)*s->at++ << s->bit_count;
    s->bit_count += 8;
  }
  const uint32_t value = s->bits & ((1u << count) - 1);
  s->bits >>= count;
  s->bit_count -= count;
  return value;
}

/* Returns 0 for lengths that form no code; incomplete codes of one symbol are allowed. */
static int inflate_make(InflateCode *code, const uint8_t *lengths, int count) {
  uint16_t next[LONGEST_CODE + 2] = {0};
  memset(code->count, 0, sizeof code->count);
  for (int i = 0; i < count; i++) code->count[lengths[i]]++;
  code->count[0] = 0;
  int left = 1;
  for (int length = 1; length <= LONGEST_CODE; length++) {
    left = 2 * left - code->count[length];
    if (left < 0) return 0;
    next[length + 1] = (uint16_t)(next[length] + code->count[length]);
  }
  for (int i = 0; i < count; i++)
    if (lengths[i]) code->symbols[next[lengths[i]]++] = (uint16_t)i;
  return 1;
}

static int inflate_symbol(Inflater *s, const InflateCode *code) {
  int value = 0, first = 0, index = 0;
  for (int length = 1; length <= LONGEST_CODE; length++) {
    value |= (int)inflate_bits(s, 1);
    if (s->failed) return 0;
    const int count = code->count[length];
    if (value - first < count) return code->symbols[index + value - first];
    index += count;
    first = (first + count) << 1;
    value <<= 1;
  }
  s->failed = 1;
  return 0;
}

static void inflate_stored(Inflater *s) {
  s->bits = 0;
  s->bit_count = 0;
  if (s->end - s->at < 4) {
    s->failed = 1;
    return;
  }
  const size_t length = s->at[0] | (size_t)s->at[1] << 8, check = s->at[2] | (size_t)s->at[3] << 8;
  s->at += 4;
  if (length != (check ^ 0xffff) || length > (size_t)(s->end - s->at) || length > s->size - s->made) {
    s->failed = 1;
    return;
  }
  memcpy(s->to + s->made, s->at, length);
  s->at += length;
  s->made += length;
}

static void inflate_copy(Inflater *s, const InflateCode *distances, int symbol) {
  static const uint16_t length_base[] = {3,  4,  5,  6,  7,  8,  9,  10, 11,  13,  15,  17,  19,  23, 27,
                                         31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258};
  static const uint8_t length_bits[] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0};
  static const uint16_t distance_base[] = {1,   2,   3,   4,   5,   7,    9,    13,   17,   25,   33,   49,   65,    97,    129,
                                           193, 257, 385, 513, 769, 1025, 1537, 2049, 3073, 4097, 6145, 8193, 12289, 16385, 24577};
  symbol -= END_OF_BLOCK + 1;
  if (symbol >= (int)sizeof length_bits) {
    s->failed = 1;
    return;
  }
  const size_t length = length_base[symbol] + inflate_bits(s, length_bits[symbol]);
  const int far = inflate_symbol(s, distances);
  if (s->failed || far >= DISTANCES) {
    s->failed = 1;
    return;
  }
  const size_t distance = distance_base[far] + inflate_bits(s, far < 2 ? 0 : far / 2 - 1);
  if (s->failed || distance > s->made || length > s->size - s->made) {
    s->failed = 1;
    return;
  }
  for (size_t i = 0; i < length; i++, s->made++) s->to[s->made] = s->to[s->made - distance];
}

static void inflate_block(Inflater *s, const InflateCode *literals, const InflateCode *distances) {
  while (!s->failed) {
    const int symbol = inflate_symbol(s, literals);
    if (s->failed || symbol == END_OF_BLOCK) return;
    if (symbol > END_OF_BLOCK) inflate_copy(s, distances, symbol);
    else if (s->made < s->size) s->to[s->made++] = (unsigned char)symbol;
    else s->failed = 1;
  }
}

static void inflate_fixed_codes(InflateCode *literals, InflateCode *distances) {
  uint8_t lengths[LITERALS];
  for (int i = 0; i < LITERALS; i++) lengths[i] = i < 144 ? 8 : i < 256 ? 9 : i < 280 ? 7 : 8;
  inflate_make(literals, lengths, LITERALS);
  memset(lengths, 5, DISTANCES);
  inflate_make(distances, lengths, DISTANCES);
}

static void inflate_read_codes(Inflater *s, InflateCode *literals, InflateCode *distances) {
  static const uint8_t order[] = {16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15};
  uint8_t lengths[LONGEST_ALPHABET + 138] = {0};
  const int many = (int)inflate_bits(s, 5) + 257, far = (int)inflate_bits(s, 5) + 1, few = (int)inflate_bits(s, 4) + 4;
  for (int i = 0; i < few; i++) lengths[order[i]] = (uint8_t)inflate_bits(s, 3);
  if (s->failed || many > 286 || far > DISTANCES || !inflate_make(literals, lengths, 19)) {
    s->failed = 1;
    return;
  }
  memset(lengths, 0, sizeof lengths);
  for (int i = 0; i < many + far && !s->failed;) {
    const int symbol = inflate_symbol(s, literals);
    if (symbol < 16) {
      lengths[i++] = (uint8_t)symbol;
      continue;
    }
    const int repeat = symbol == 16   ? 3 + (int)inflate_bits(s, 2)
                       : symbol == 17 ? 3 + (int)inflate_bits(s, 3)
                                      : 11 + (int)inflate_bits(s, 7);
    if (symbol == 16 && i == 0) s->failed = 1;
    const uint8_t length = symbol == 16 && i > 0 ? lengths[i - 1] : 0;
    memset(lengths + i, length, (size_t)repeat);
    i += repeat;
    if (i > many + far) s->failed = 1;
  }
  if (s->failed || !lengths[END_OF_BLOCK] || !inflate_make(literals, lengths, many) ||
      !inflate_make(distances, lengths + many, far))
    s->failed = 1;
}

/* Decompress to exactly `size` bytes; returns 0 if that cannot be done.  The checksum is not verified: those of PNG
   chunks are. */
static int inflate_zlib(const unsigned char *data, size_t count, unsigned char *to, size_t size) {
  if (count < 2 || (data[0] & 15) != 8 || (data[0] << 8 | data[1]) % 31 != 0 || data[1] & 32) return 0;
  Inflater s = {data + 2, data + count, to, size, 0, 0, 0, 0};
  InflateCode literals, distances;
  for (int last = 0; !last && !s.failed;) {
    last = (int)inflate_bits(&s, 1);
    const int kind = (int)inflate_bits(&s, 2);
    if (s.failed || kind == 3) return 0;
    if (kind == 0) {
      inflate_stored(&s);
      continue;
    }
    if (kind == 1) inflate_fixed_codes(&literals, &distances);
    else inflate_read_codes(&s, &literals, &distances);
    inflate_block(&s, &literals, &distances);
  }
  return !s.failed && s.made == size;
}

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
  if (png->data == NULL) return image_memory;
  for (size_t at = 8;;) {
    if (size - at < 12) return image_truncated;
    const size_t length = big_endian(data + at);
    if (length > size - at - 12) return image_truncated;
    const unsigned char *type = data + at + 4, *content = data + at + 8;
    const int critical = !(type[0] & 32);
    if (png_checked && critical && png_crc(type, length + 4) != big_endian(content + length)) return png_damaged;
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
      png->orientation = exif_orientation(content, length);
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
  if (bytes / MOST_INFLATION > png->data_size) return image_truncated; /* before memory is taken for it */
  image->width = (long)png->width;
  image->height = (long)png->height;
  image->channels = png->colour == 3 || png->samples > 2 ? 3 : 1;
  const char *problem = image_allocate(image);
  if (problem != NULL) return problem;
  unsigned char *raw = malloc(bytes);
  if (raw == NULL) return image_memory;
  if (!inflate_zlib(png->data, png->data_size, raw, bytes)) problem = png_damaged;
  unsigned char *at = raw;
  for (const PngPass *pass = first; pass < end && problem == NULL; at += png_pass_bytes(png, pass), pass++)
    problem = png_take_pass(png, pass, at, image);
  free(raw);
  return problem;
}

static const char *read_png(const unsigned char *data, size_t size, Image *image) {
  Png png = {0};
  const char *problem = png_chunks(&png, data, size);
  if (problem == NULL) problem = png_pixels(&png, image);
  free(png.data);
  return problem == NULL ? turn_image(image, png.orientation) : problem;
}

#endif
