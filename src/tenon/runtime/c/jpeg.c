/* JPEG images in memory (ITU-T T.81): sequential and progressive, Huffman-coded, 8 bits, grey or colour.

   Results are those of libjpeg with its defaults: the accurate integer IDCT, and interpolated ("fancy") upsampling of
   chroma.  All reads are bounds-checked. */

#include "exif.h"
#include "image_readers.h"
#include "jpeg_samples.h"

#include <stdlib.h>
#include <string.h>

static const char *const jpeg_damaged = "the JPEG image is damaged";

enum { JPEG_COMPONENTS = 3, JPEG_CODES = 16, JPEG_FAST_BITS = 9 };

/* A Huffman code: the largest code of each length plus one, left-aligned to 16 bits, and the symbols in order.  `fast`
   has length << 8 | symbol for the first bits of short codes. */
typedef struct {
  uint32_t limit[JPEG_CODES + 2];
  int offset[JPEG_CODES + 1], count;
  uint8_t symbols[256];
  uint16_t fast[1 << JPEG_FAST_BITS];
} JpegCode;

typedef struct {
  int id, h, v, quantization, dc, ac; /* sampling factors, tables */
  int predictor;
  long blocks_wide, blocks_high;   /* allocated: whole MCUs */
  long used_wide, used_high;       /* blocks with image data */
  long width, height;              /* samples */
  int16_t *coefficients;           /* [blocks_high][blocks_wide][64], in natural order */
  unsigned char *samples;          /* [8 blocks_high][8 blocks_wide] */
} JpegComponent;

typedef struct {
  const unsigned char *at, *end;
  uint32_t bits;
  int bit_count, failed, marker;
  long width, height;
  int count, progressive, h_max, v_max, adobe, jfif, orientation, restart_interval, has_frame;
  long mcus_wide, mcus_high;
  JpegComponent components[JPEG_COMPONENTS];
  uint16_t quantization[4][64];
  int has_quantization[4];
  JpegCode dc_codes[4], ac_codes[4];
  /* The scan. */
  int scan[JPEG_COMPONENTS], scan_count, first, last, high, low;
  uint32_t run; /* blocks left of an end-of-band run */
} Jpeg;

static const uint8_t jpeg_zigzag[64] = {0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48,
                                        41, 34, 27, 20, 13, 6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23,
                                        30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63};

/* ---------------------------------------------------------------------------------------------------------- bits */

/* At least 16 bits in `bits`, from the top; zeros behind a marker. */
static void jpeg_fill(Jpeg *j) {
  while (j->bit_count <= 24) {
    uint32_t byte = 0;
    if (!j->marker && j->at < j->end) {
      byte = *j->at++;
      if (byte == 0xff) {
        while (j->at < j->end && *j->at == 0xff) j->at++;
        const int next = j->at < j->end ? *j->at++ : 0xd9;
        if (next != 0) j->marker = next, byte = 0;
      }
    } else if (!j->marker) {
      j->marker = 0xd9;
      j->failed = 2; /* the file ends within a scan */
    }
    j->bits |= byte << (24 - j->bit_count);
    j->bit_count += 8;
  }
}

static uint32_t jpeg_bits(Jpeg *j, int count) {
  if (count == 0) return 0;
  if (j->bit_count < count) jpeg_fill(j);
  const uint32_t value = j->bits >> (32 - count);
  j->bits <<= count;
  j->bit_count -= count;
  return value;
}

static int jpeg_symbol(Jpeg *j, const JpegCode *code) {
  if (j->bit_count < 16) jpeg_fill(j);
  const uint16_t fast = code->fast[j->bits >> (32 - JPEG_FAST_BITS)];
  if (fast) {
    j->bits <<= fast >> 8;
    j->bit_count -= fast >> 8;
    return fast & 255;
  }
  const uint32_t top = j->bits >> 16;
  for (int length = JPEG_FAST_BITS + 1; length <= JPEG_CODES; length++)
    if (top < code->limit[length]) {
      const int index = code->offset[length] + (int)(top >> (16 - length));
      if (index < 0 || index >= code->count) break;
      j->bits <<= length;
      j->bit_count -= length;
      return code->symbols[index];
    }
  j->failed = 1;
  return 0;
}

/* The signed value of `count` bits (T.81, EXTEND). */
static int jpeg_value(Jpeg *j, int count) {
  if (count == 0) return 0;
  const int value = (int)jpeg_bits(j, count);
  return value < 1 << (count - 1) ? value - (1 << count) + 1 : value;
}

/* ---------------------------------------------------------------------------------------------------- coefficients */

static void jpeg_sequential_block(Jpeg *j, JpegComponent *c, int16_t *block) {
  const int size = jpeg_symbol(j, &j->dc_codes[c->dc]);
  if (size > 15) j->failed = 1;
  c->predictor += jpeg_value(j, size & 15);
  block[0] = (int16_t)c->predictor;
  for (int k = 1; k < 64 && !j->failed; k++) {
    const int symbol = jpeg_symbol(j, &j->ac_codes[c->ac]), bits = symbol & 15, zeros = symbol >> 4;
    if (bits == 0) {
      if (zeros < 15) return;
      k += 15;
      continue;
    }
    k += zeros;
    if (k > 63) j->failed = 1;
    else block[jpeg_zigzag[k]] = (int16_t)jpeg_value(j, bits);
  }
}

static void jpeg_first_ac(Jpeg *j, const JpegCode *code, int16_t *block) {
  if (j->run > 0) {
    j->run--;
    return;
  }
  for (int k = j->first; k <= j->last && !j->failed; k++) {
    const int symbol = jpeg_symbol(j, code), bits = symbol & 15, zeros = symbol >> 4;
    if (bits == 0 && zeros < 15) {
      j->run = (1u << zeros) + jpeg_bits(j, zeros) - 1;
      return;
    }
    k += zeros;
    if (bits == 0) continue;
    if (k > 63) j->failed = 1;
    else block[jpeg_zigzag[k]] = (int16_t)(jpeg_value(j, bits) * (1 << j->low));
  }
}

/* One more bit of a coefficient that is not zero. */
static void jpeg_refine(Jpeg *j, int16_t *coefficient) {
  const int bit = 1 << j->low;
  if (jpeg_bits(j, 1) && !(abs(*coefficient) & bit)) *coefficient = (int16_t)(*coefficient + (*coefficient < 0 ? -bit : bit));
}

static void jpeg_refine_ac(Jpeg *j, const JpegCode *code, int16_t *block) {
  int k = j->first;
  while (j->run == 0 && k <= j->last && !j->failed) {
    const int symbol = jpeg_symbol(j, code), bits = symbol & 15;
    int zeros = symbol >> 4, value = 0;
    if (bits > 1) j->failed = 1;
    if (bits == 1) {
      value = jpeg_bits(j, 1) ? 1 << j->low : -(1 << j->low);
    } else if (zeros < 15) {
      j->run = (1u << zeros) + jpeg_bits(j, zeros);
      break;
    }
    for (; k <= j->last; k++) {
      int16_t *at = &block[jpeg_zigzag[k]];
      if (*at != 0) {
        jpeg_refine(j, at);
      } else if (zeros-- == 0) {
        if (value) *at = (int16_t)value;
        k++;
        break;
      }
    }
  }
  if (j->run == 0) return;
  for (; k <= j->last; k++)
    if (block[jpeg_zigzag[k]] != 0) jpeg_refine(j, &block[jpeg_zigzag[k]]);
  j->run--;
}

static void jpeg_block(Jpeg *j, JpegComponent *c, long row, long column) {
  int16_t *block = c->coefficients + ((size_t)row * (size_t)c->blocks_wide + (size_t)column) * 64;
  if (!j->progressive) {
    jpeg_sequential_block(j, c, block);
  } else if (j->first == 0) {
    if (j->high) {
      if (jpeg_bits(j, 1)) block[0] = (int16_t)(block[0] | 1 << j->low);
      return;
    }
    const int size = jpeg_symbol(j, &j->dc_codes[c->dc]);
    if (size > 15) j->failed = 1;
    c->predictor += jpeg_value(j, size & 15);
    block[0] = (int16_t)(c->predictor * (1 << j->low));
  } else if (j->high) {
    jpeg_refine_ac(j, &j->ac_codes[c->ac], block);
  } else {
    jpeg_first_ac(j, &j->ac_codes[c->ac], block);
  }
}

/* Go behind the next restart marker. */
static void jpeg_restart(Jpeg *j) {
  if (!j->marker) jpeg_fill(j);
  while (!j->marker && j->at < j->end) {
    if (*j->at++ == 0xff && j->at < j->end && *j->at != 0 && *j->at != 0xff) j->marker = *j->at++;
  }
  if (j->marker < 0xd0 || j->marker > 0xd7) {
    j->failed = 1;
    return;
  }
  j->marker = j->bit_count = 0;
  j->bits = j->run = 0;
  for (int i = 0; i < j->count; i++) j->components[i].predictor = 0;
}

static void jpeg_decode_scan(Jpeg *j) {
  JpegComponent *only = &j->components[j->scan[0]];
  const int single = j->scan_count == 1;
  const long wide = single ? only->used_wide : j->mcus_wide, high = single ? only->used_high : j->mcus_high;
  j->bits = j->run = 0;
  j->bit_count = j->marker = 0;
  for (int i = 0; i < j->count; i++) j->components[i].predictor = 0;
  long until_restart = j->restart_interval;
  for (long y = 0; y < high; y++)
    for (long x = 0; x < wide && !j->failed; x++) {
      if (j->restart_interval && until_restart-- == 0) {
        jpeg_restart(j);
        until_restart = j->restart_interval - 1;
      }
      if (single) {
        jpeg_block(j, only, y, x);
        continue;
      }
      for (int i = 0; i < j->scan_count; i++) {
        JpegComponent *c = &j->components[j->scan[i]];
        for (int k = 0; k < c->h * c->v; k++) jpeg_block(j, c, y * c->v + k / c->h, x * c->h + k % c->h);
      }
    }
}

/* ------------------------------------------------------------------------------------------------------- headers */

static const char *jpeg_quantization(Jpeg *j, const unsigned char *data, size_t size) {
  while (size > 0) {
    const int table = data[0] & 15, wide = data[0] >> 4;
    const size_t bytes = wide ? 129 : 65;
    if (table > 3 || wide > 1 || size < bytes) return jpeg_damaged;
    for (int i = 0; i < 64; i++)
      j->quantization[table][jpeg_zigzag[i]] = (uint16_t)(wide ? data[1 + 2 * i] << 8 | data[2 + 2 * i] : data[1 + i]);
    j->has_quantization[table] = 1;
    data += bytes;
    size -= bytes;
  }
  return NULL;
}

static const char *jpeg_make_code(JpegCode *code, const unsigned char *counts, const unsigned char *symbols) {
  uint32_t next = 0;
  int index = 0;
  memset(code, 0, sizeof *code);
  for (int length = 1; length <= JPEG_CODES; length++) {
    code->offset[length] = index - (int)next;
    for (int i = 0; i < counts[length - 1]; i++, index++, next++) {
      code->symbols[index] = symbols[index];
      if (length > JPEG_FAST_BITS) continue;
      const uint32_t spread = 1u << (JPEG_FAST_BITS - length);
      if (next >= 1u << length) return jpeg_damaged;
      for (uint32_t k = 0; k < spread; k++) code->fast[next * spread + k] = (uint16_t)(length << 8 | symbols[index]);
    }
    if (next > 1u << length) return jpeg_damaged;
    code->limit[length] = next << (16 - length);
    next <<= 1;
  }
  code->count = index;
  return NULL;
}

static const char *jpeg_huffman(Jpeg *j, const unsigned char *data, size_t size) {
  while (size > 0) {
    size_t symbols = 0;
    if (size < 17 || data[0] >> 4 > 1 || (data[0] & 15) > 3) return jpeg_damaged;
    for (int i = 1; i <= JPEG_CODES; i++) symbols += data[i];
    if (symbols > 256 || size < 17 + symbols) return jpeg_damaged;
    JpegCode *codes = data[0] >> 4 ? j->ac_codes : j->dc_codes;
    const char *problem = jpeg_make_code(&codes[data[0] & 15], data + 1, data + 17);
    if (problem != NULL) return problem;
    data += 17 + symbols;
    size -= 17 + symbols;
  }
  return NULL;
}

static const char *jpeg_frame(Jpeg *j, const unsigned char *data, size_t size) {
  if (j->has_frame || size < 6) return jpeg_damaged;
  if (data[0] != 8) return "JPEG images with more than 8 bits are not supported: convert it to PNG";
  j->height = data[1] << 8 | data[2];
  j->width = data[3] << 8 | data[4];
  j->count = data[5];
  if (j->count == 4) return "JPEG images in CMYK are not supported: convert it to RGB";
  if ((j->count != 1 && j->count != 3) || size != 6 + 3 * (size_t)j->count) return jpeg_damaged;
  if (j->width < 1 || j->height < 1) return "the image has an impossible size";
  for (int i = 0; i < j->count; i++) {
    const unsigned char *from = data + 6 + 3 * i;
    JpegComponent *c = &j->components[i];
    c->id = from[0];
    c->h = from[1] >> 4;
    c->v = from[1] & 15;
    c->quantization = from[2];
    if (c->h < 1 || c->h > 4 || c->v < 1 || c->v > 4 || c->quantization > 3) return jpeg_damaged;
    if (c->h > j->h_max) j->h_max = c->h;
    if (c->v > j->v_max) j->v_max = c->v;
  }
  j->mcus_wide = (j->width + 8 * j->h_max - 1) / (8 * j->h_max);
  j->mcus_high = (j->height + 8 * j->v_max - 1) / (8 * j->v_max);
  /* Each block takes at least a few bits in some scan: sizes that the file cannot fill are refused before memory is
     taken for them. */
  if ((size_t)j->mcus_wide * (size_t)j->mcus_high / 4096 > (size_t)(j->end - j->at)) return IMAGE_TRUNCATED;
  for (int i = 0; i < j->count; i++) {
    JpegComponent *c = &j->components[i];
    if (j->h_max % c->h || j->v_max % c->v) return "JPEG images with such subsampling are not supported: convert it to PNG";
    c->width = (j->width * c->h + j->h_max - 1) / j->h_max;
    c->height = (j->height * c->v + j->v_max - 1) / j->v_max;
    c->used_wide = (c->width + 7) / 8;
    c->used_high = (c->height + 7) / 8;
    c->blocks_wide = j->mcus_wide * c->h;
    c->blocks_high = j->mcus_high * c->v;
    const size_t bytes = (size_t)c->blocks_wide * (size_t)c->blocks_high * 64 * sizeof *c->coefficients;
    c->coefficients = malloc(bytes);
    if (c->coefficients == NULL) return IMAGE_MEMORY;
    memset(c->coefficients, 0, bytes);
  }
  j->has_frame = 1;
  return NULL;
}

static const char *jpeg_scan(Jpeg *j, const unsigned char *data, size_t size) {
  if (!j->has_frame || size < 1 || data[0] < 1 || data[0] > j->count || size != 4 + 2 * (size_t)data[0])
    return jpeg_damaged;
  j->scan_count = data[0];
  for (int i = 0; i < j->scan_count; i++) {
    int k = 0;
    while (k < j->count && j->components[k].id != data[1 + 2 * i]) k++;
    if (k == j->count || data[2 + 2 * i] >> 4 > 3 || (data[2 + 2 * i] & 15) > 3) return jpeg_damaged;
    for (int before = 0; before < i; before++)
      if (j->scan[before] == k) return jpeg_damaged;
    j->scan[i] = k;
    j->components[k].dc = data[2 + 2 * i] >> 4;
    j->components[k].ac = data[2 + 2 * i] & 15;
  }
  data += 1 + 2 * j->scan_count;
  j->first = data[0];
  j->last = data[1];
  j->high = data[2] >> 4;
  j->low = data[2] & 15;
  if (j->progressive && (j->first > j->last || j->last > 63 || j->low > 13 || (j->first == 0) != (j->last == 0) ||
                         (j->first > 0 && j->scan_count > 1)))
    return jpeg_damaged;
  jpeg_decode_scan(j);
  return j->failed == 2 ? IMAGE_TRUNCATED : j->failed ? jpeg_damaged : NULL;
}

static const char *jpeg_segment(Jpeg *j, int marker, const unsigned char *data, size_t size) {
  if (marker == 0xdb) return jpeg_quantization(j, data, size);
  if (marker == 0xc4) return jpeg_huffman(j, data, size);
  if (marker == 0xda) return jpeg_scan(j, data, size);
  if (marker == 0xdd && size == 2) j->restart_interval = data[0] << 8 | data[1];
  if (marker == 0xe0 && size >= 5 && memcmp(data, "JFIF", 5) == 0) j->jfif = 1;
  if (marker == 0xee && size >= 12 && memcmp(data, "Adobe", 5) == 0) j->adobe = 1 + data[11];
  if (marker == 0xe1 && size >= 6 && memcmp(data, "Exif\0", 6) == 0)
    j->orientation = tenon_exif_orientation(data + 6, size - 6);
  if (marker < 0xc0 || marker > 0xcf || marker == 0xc8 || marker == 0xcc) return NULL;
  if (marker > 0xc2) return "lossless and arithmetic-coded JPEG images are not supported: convert it to PNG";
  j->progressive = marker == 0xc2;
  return jpeg_frame(j, data, size);
}

static const char *jpeg_segments(Jpeg *j) {
  for (int scans = 0;;) {
    int marker = j->marker;
    j->marker = 0;
    while (!marker && j->at < j->end) {
      if (*j->at++ != 0xff) continue;
      while (j->at < j->end && *j->at == 0xff) j->at++;
      if (j->at < j->end) marker = *j->at++;
    }
    if (marker == 0xd9 && scans > 0) return NULL;
    if (!marker || marker == 0xd9) return IMAGE_TRUNCATED;
    if ((marker >= 0xd0 && marker <= 0xd8) || marker == 1) continue;
    if (j->end - j->at < 2) return IMAGE_TRUNCATED;
    const size_t length = (size_t)(j->at[0] << 8 | j->at[1]);
    if (length < 2) return jpeg_damaged;
    if (length > (size_t)(j->end - j->at)) return IMAGE_TRUNCATED;
    const unsigned char *data = j->at + 2;
    j->at += length;
    const char *problem = jpeg_segment(j, marker, data, length - 2);
    if (problem != NULL) return problem;
    scans += marker == 0xda;
  }
}

/* -------------------------------------------------------------------------------------------------------- pixels */

static const char *jpeg_transform(const Jpeg *j, JpegComponent *c) {
  const size_t stride = (size_t)c->blocks_wide * 8;
  if (!j->has_quantization[c->quantization]) return jpeg_damaged;
  c->samples = malloc(stride * (size_t)c->blocks_high * 8);
  if (c->samples == NULL) return IMAGE_MEMORY;
  for (long y = 0; y < c->blocks_high; y++)
    for (long x = 0; x < c->blocks_wide; x++)
      tenon_jpeg_idct(c->coefficients + ((size_t)y * (size_t)c->blocks_wide + (size_t)x) * 64,
                j->quantization[c->quantization], c->samples + (size_t)y * 8 * stride + (size_t)x * 8, stride);
  return NULL;
}

/* Whether the three components are YCbCr. */
static int jpeg_has_luma(const Jpeg *j) {
  const JpegComponent *c = j->components;
  const int rgb = c[0].id == 'R' && c[1].id == 'G' && c[2].id == 'B';
  return j->jfif ? 1 : j->adobe ? j->adobe != 1 : !rgb;
}

static const char *jpeg_pixels(Jpeg *j, Image *image) {
  image->width = j->width;
  image->height = j->height;
  image->channels = j->count;
  const char *problem = tenon_image_allocate(image);
  for (int i = 0; i < j->count && problem == NULL; i++) {
    JpegComponent *c = &j->components[i];
    problem = jpeg_transform(j, c);
    if (problem != NULL) break;
    const JpegPlane plane = {c->samples, (size_t)c->blocks_wide * 8, c->width, c->height};
    tenon_jpeg_upsample(&plane, j->h_max / c->h, j->v_max / c->v, j->width, j->height, image->pixels + i, (size_t)j->count);
  }
  if (problem == NULL && j->count == 3 && jpeg_has_luma(j))
    tenon_jpeg_to_rgb(image->pixels, (size_t)image->width * (size_t)image->height);
  return problem;
}

const char *tenon_read_jpeg(const unsigned char *data, size_t size, Image *image) {
  Jpeg *j = calloc(1, sizeof *j);
  if (j == NULL) return IMAGE_MEMORY;
  j->at = data + 2;
  j->end = data + size;
  j->orientation = 1;
  const char *problem = jpeg_segments(j);
  if (problem == NULL) problem = jpeg_pixels(j, image);
  const int orientation = j->orientation;
  for (int i = 0; i < JPEG_COMPONENTS; i++) {
    free(j->components[i].coefficients);
    free(j->components[i].samples);
  }
  free(j);
  return problem == NULL ? tenon_turn_image(image, orientation) : problem;
}
