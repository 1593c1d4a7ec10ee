/* From the coefficients of JPEG images to pixels, with the roundings of libjpeg. */

#include "jpeg_samples.h"

static unsigned char jpeg_byte(int value) { return (unsigned char)(value < 0 ? 0 : value > 255 ? 255 : value); }

/* A line of 8 values, `step` apart: the algorithm of Loeffler, Ligtenberg and Moschytz (ICASSP 1989) with 11
   multiplications, in integers with 13 bits of fraction, rounded by `shift` bits. */
static void jpeg_idct_line(const int32_t *from, int32_t *to, int step, int shift) {
  enum { C298 = 2446, C390 = 3196, C541 = 4433, C765 = 6270, C899 = 7373, C1175 = 9633, C1501 = 12299, C1847 = 15137,
         C1961 = 16069, C2053 = 16819, C2562 = 20995, C3072 = 25172 };
  /* Unsigned products wrap where damaged files overflow. */
#define TIMES(a, b) ((int32_t)((uint32_t)(a) * (uint32_t)(b)))
#define PLUS(a, b) ((int32_t)((uint32_t)(a) + (uint32_t)(b)))
#define LESS(a, b) ((int32_t)((uint32_t)(a) - (uint32_t)(b)))
  const int32_t even = TIMES(PLUS(from[2 * step], from[6 * step]), C541);
  const int32_t even2 = PLUS(even, TIMES(from[6 * step], -C1847)), even3 = PLUS(even, TIMES(from[2 * step], C765));
  const int32_t even0 = TIMES(PLUS(from[0], from[4 * step]), 1 << 13), even1 = TIMES(LESS(from[0], from[4 * step]), 1 << 13);
  const int32_t sums[4] = {PLUS(even0, even3), PLUS(even1, even2), LESS(even1, even2), LESS(even0, even3)};
  const int32_t a = from[7 * step], b = from[5 * step], c = from[3 * step], d = from[step];
  const int32_t z5 = TIMES(PLUS(PLUS(a, c), PLUS(b, d)), C1175);
  const int32_t z1 = TIMES(PLUS(a, d), -C899), z2 = TIMES(PLUS(b, c), -C2562);
  const int32_t z3 = PLUS(TIMES(PLUS(a, c), -C1961), z5), z4 = PLUS(TIMES(PLUS(b, d), -C390), z5);
  const int32_t odd[4] = {PLUS(PLUS(TIMES(d, C1501), z1), z4), PLUS(PLUS(TIMES(c, C3072), z2), z3),
                          PLUS(PLUS(TIMES(b, C2053), z2), z4), PLUS(PLUS(TIMES(a, C298), z1), z3)};
  const int32_t rounding = 1 << (shift - 1);
  for (int i = 0; i < 4; i++) {
    to[i * step] = PLUS(PLUS(sums[i], odd[i]), rounding) >> shift;
    to[(7 - i) * step] = PLUS(LESS(sums[i], odd[i]), rounding) >> shift;
  }
#undef TIMES
#undef PLUS
#undef LESS
}

void tenon_jpeg_idct(const int16_t *block, const uint16_t *quantization, unsigned char *to, size_t stride) {
  int32_t values[64], columns[64];
  for (int i = 0; i < 64; i++) values[i] = block[i] * quantization[i];
  for (int i = 0; i < 8; i++) jpeg_idct_line(values + i, columns + i, 8, 13 - 2);
  for (int y = 0; y < 8; y++) {
    jpeg_idct_line(columns + 8 * y, values, 1, 13 + 2 + 3);
    for (int x = 0; x < 8; x++) to[(size_t)y * stride + (size_t)x] = jpeg_byte(values[x] + 128);
  }
}

static const unsigned char *jpeg_row(const JpegPlane *plane, long y) {
  return plane->samples + (size_t)(y < 0 ? 0 : y < plane->height ? y : plane->height - 1) * plane->stride;
}

/* Twice as wide, and with `tall` twice as high: samples weighted 3 to 1 with their neighbours.  `near` is the row that
   covers this one, `other` its neighbour on the side of this row. */
static int jpeg_fancy(const unsigned char *near, const unsigned char *other, int tall, long width, long x) {
  const long i = x / 2, beside = x & 1 ? i + 1 : i - 1;
  if (!tall) {
    if (beside < 0 || beside >= width) return near[i];
    return (near[i] * 3 + near[beside] + (x & 1 ? 2 : 1)) >> 2;
  }
  const int here = near[i] * 3 + other[i];
  if (beside < 0) return (here * 4 + 8) >> 4;
  if (beside >= width) return (here * 4 + 7) >> 4;
  return (here * 3 + near[beside] * 3 + other[beside] + (x & 1 ? 7 : 8)) >> 4;
}

void tenon_jpeg_upsample(const JpegPlane *plane, int h, int v, long width, long height, unsigned char *to, size_t step) {
  const int wide = h == 2 && v <= 2 && plane->width > 2, tall = v == 2 && (wide || h == 1);
  for (long y = 0; y < height; y++) {
    const unsigned char *near = jpeg_row(plane, y / v), *other = jpeg_row(plane, y / v + (y % v ? 1 : -1));
    for (long x = 0; x < width; x++, to += step) {
      if (wide) *to = (unsigned char)jpeg_fancy(near, other, tall, plane->width, x);
      else if (tall) *to = (unsigned char)((near[x] * 3 + other[x] + (y % v ? 2 : 1)) >> 2);
      else *to = near[x / h];
    }
  }
}

void tenon_jpeg_to_rgb(unsigned char *to, size_t count) {
  for (size_t i = 0; i < count; i++, to += 3) {
    const int y = to[0], cb = to[1] - 128, cr = to[2] - 128;
    to[0] = jpeg_byte(y + ((91881 * cr + 32768) >> 16));
    to[1] = jpeg_byte(y + ((-22554 * cb - 46802 * cr + 32768) >> 16));
    to[2] = jpeg_byte(y + ((116130 * cb + 32768) >> 16));
  }
}
