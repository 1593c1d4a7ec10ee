/* Image preprocessing: the same results as engine/image.py with Pillow, bit for bit.

   Compile with -ffp-contract=off: fused multiply-adds would round differently. */

#include "preprocess.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static double least_of(double a, double b) { return a < b ? a : b; }
static double most_of(double a, double b) { return a > b ? a : b; }

/* Convert to 1 or 3 channels; grey by the weights of ITU-R BT.601, in 16 bits. */
static const char *convert_image(Image *image, int channels) {
  if (image->channels == channels) return NULL;
  const size_t count = (size_t)image->width * (size_t)image->height;
  unsigned char *to = malloc(count * (size_t)channels);
  if (to == NULL) return IMAGE_MEMORY;
  for (size_t i = 0; i < count; i++) {
    const unsigned char *p = image->pixels + i * (size_t)image->channels;
    if (channels == 3) memset(to + 3 * i, p[0], 3);
    else to[i] = (unsigned char)((p[0] * 19595u + p[1] * 38470u + p[2] * 7471u + 0x8000u) >> 16);
  }
  free(image->pixels);
  image->pixels = to;
  image->channels = channels;
  return NULL;
}

/* ------------------------------------------------------------------------------------------------ resizing */

/* Resampling of a line of `size` pixels between `from` and `to` to `count` pixels: input range and weights (times 2^22)
   of a filter over the covered pixels. */
typedef struct {
  long room; /* weights for each new pixel */
  int *first, *taps;
  int32_t *weights;
} Filter;

enum { WEIGHT_BITS = 22 };

static void free_filter(Filter *filter) {
  free(filter->first);
  free(filter->taps);
  free(filter->weights);
}

static double sinc(double x) {
  const double angle = x * 3.14159265358979323846;
  return angle == 0 ? 1 : sin(angle) / angle;
}

/* The weight of a pixel at a distance from the centre: a triangle, Keys' cubic convolution kernel with a = -0.5, or
   Lanczos' kernel of three zero crossings. */
static double filter_weight(int sampling, double away) {
  if (sampling == SAMPLING_LANCZOS) return -3 <= away && away < 3 ? sinc(away) * sinc(away / 3) : 0;
  const double x = fabs(away);
  if (sampling == SAMPLING_SMOOTH) return x < 1 ? 1 - x : 0;
  if (x < 1) return (1.5 * x - 2.5) * x * x + 1;
  return x < 2 ? (((x - 5) * x + 8) * x - 4) * -0.5 : 0;
}

static const char *make_filter(Filter *filter, int sampling, long size, float from, float to, long count) {
  const double scale = (double)(to - from) / (double)count;
  const double stretch = scale < 1 ? 1 : scale, inverse = 1 / stretch;
  const double reach = (sampling == SAMPLING_LANCZOS ? 3 : sampling == SAMPLING_BICUBIC ? 2 : 1) * stretch;
  filter->room = (long)ceil(reach) * 2 + 1;
  filter->first = malloc((size_t)count * sizeof(int));
  filter->taps = malloc((size_t)count * sizeof(int));
  filter->weights = malloc((size_t)count * (size_t)filter->room * sizeof(int32_t));
  double *shares = malloc((size_t)filter->room * sizeof(double));
  const int there = filter->first != NULL && filter->taps != NULL && filter->weights != NULL && shares != NULL;
  for (long i = 0; there && i < count; i++) {
    const double centre = from + ((double)i + 0.5) * scale;
    long first = (long)(centre - reach + 0.5), end = (long)(centre + reach + 0.5);
    if (first < 0) first = 0;
    if (end > size) end = size;
    double sum = 0;
    for (long j = 0; j < end - first; j++) {
      shares[j] = filter_weight(sampling, ((double)(j + first) - centre + 0.5) * inverse);
      sum += shares[j];
    }
    for (long j = 0; j < end - first; j++) {
      const double share = sum != 0 ? shares[j] / sum : shares[j];
      filter->weights[i * filter->room + j] = (int32_t)((share < 0 ? -0.5 : 0.5) + share * (1 << WEIGHT_BITS));
    }
    filter->first[i] = (int)first;
    filter->taps[i] = (int)(end - first);
  }
  free(shares);
  return there ? NULL : IMAGE_MEMORY;
}

/* The weighted sum of `taps` values with a stride of `step` bytes. */
static unsigned char weighted(const unsigned char *from, size_t step, const int32_t *weights, int taps) {
  int32_t sum = 1 << (WEIGHT_BITS - 1);
  for (int j = 0; j < taps; j++) sum += from[(size_t)j * step] * weights[j];
  sum >>= WEIGHT_BITS;
  return (unsigned char)(sum > 255 ? 255 : sum < 0 ? 0 : sum);
}

static void apply_filters(const Image *image, const Filter *across, const Filter *down, unsigned char *middle,
                          unsigned char *to, long height, long width) {
  const size_t c = (size_t)image->channels, row = (size_t)width * c, old = (size_t)image->width * c;
  const long top = down->first[0], bottom = down->first[height - 1] + down->taps[height - 1];
  for (long y = top; y < bottom; y++)
    for (long x = 0; x < width; x++)
      for (size_t k = 0; k < c; k++) {
        const unsigned char *from = image->pixels + (size_t)y * old + (size_t)across->first[x] * c + k;
        middle[(size_t)(y - top) * row + (size_t)x * c + k] =
            weighted(from, c, across->weights + x * across->room, across->taps[x]);
      }
  for (long y = 0; y < height; y++)
    for (size_t x = 0; x < row; x++)
      to[(size_t)y * row + x] = weighted(middle + (size_t)(down->first[y] - top) * row + x, row,
                                         down->weights + y * down->room, down->taps[y]);
}

/* Resize the box (left, top, right, bottom) of an image to height x width, with antialiasing. */
static const char *resize_smoothly(const Image *image, const double *box, int sampling, unsigned char *to, long height,
                                   long width) {
  Filter across = {0, NULL, NULL, NULL}, down = across;
  const char *problem = make_filter(&across, sampling, image->width, (float)box[0], (float)box[2], width);
  if (problem == NULL) problem = make_filter(&down, sampling, image->height, (float)box[1], (float)box[3], height);
  unsigned char *middle = malloc((size_t)image->height * (size_t)width * (size_t)image->channels);
  if (middle == NULL) problem = IMAGE_MEMORY;
  if (problem == NULL) apply_filters(image, &across, &down, middle, to, height, width);
  free(middle);
  free_filter(&across);
  free_filter(&down);
  return problem;
}

static long held(long at, long size) { return at < 0 ? 0 : at < size ? at : size - 1; }

static void bilinear_pixel(const Image *image, double x, double y, unsigned char *to) {
  const size_t c = (size_t)image->channels, row = (size_t)image->width * c;
  x -= 0.5;
  y -= 0.5;
  const long left = (long)floor(x), top = (long)floor(y);
  const double dx = x - (double)left, dy = y - (double)top;
  const unsigned char *upper = image->pixels + (size_t)held(top, image->height) * row;
  const unsigned char *lower = image->pixels + (size_t)held(top + 1, image->height) * row;
  const size_t a = (size_t)held(left, image->width) * c, b = (size_t)held(left + 1, image->width) * c;
  for (size_t k = 0; k < c; k++) {
    const double above = upper[a + k] + (upper[b + k] - upper[a + k]) * dx;
    const double below = lower[a + k] + (lower[b + k] - lower[a + k]) * dx;
    to[k] = (unsigned char)(above + (below - above) * dy);
  }
}

/* Resize without antialiasing: from the four pixels, or the nearest one, at each new pixel's centre. */
static void resize_by_points(const Image *image, const double *box, int linear, unsigned char *to, long height,
                             long width) {
  const size_t c = (size_t)image->channels;
  const double across = (box[2] - box[0]) / (double)width, down = (box[3] - box[1]) / (double)height;
  double ny = box[1] + down * 0.5;
  for (long i = 0; i < height; i++, ny += down) {
    double nx = box[0] + across * 0.5;
    for (long j = 0; j < width; j++, nx += across, to += c) {
      /* Pillow accumulates coordinates for nearest and multiplies for bilinear: rounding differs. */
      const double x = linear ? across * ((double)j + 0.5) + box[0] : nx;
      const double y = linear ? down * ((double)i + 0.5) + box[1] : ny;
      const int inside = x >= 0 && y >= 0 && x < (double)image->width && y < (double)image->height;
      if (!inside) memset(to, 0, c);
      else if (linear) bilinear_pixel(image, x, y, to);
      else memcpy(to, image->pixels + ((size_t)y * (size_t)image->width + (size_t)x) * c, c);
    }
  }
}

static const char *resize_box(const Image *image, const double *box, int sampling, unsigned char *to, long height,
                              long width) {
  if (sampling != SAMPLING_BILINEAR && sampling != SAMPLING_NEAREST)
    return resize_smoothly(image, box, sampling, to, height, width);
  resize_by_points(image, box, sampling == SAMPLING_BILINEAR, to, height, width);
  return NULL;
}

/* ------------------------------------------------------------------------------------------------- fitting */

/* The part (left, top, right, bottom) of an image of high x wide that an input of height x width shows after a centre
   crop. */
static void cropped_box(const TenonPreprocessing *how, double high, double wide, long height, long width, double *box) {
  const double ratio = how->resize ? (double)how->resize / least_of(high, wide)
                                   : most_of((double)height / high, (double)width / wide);
  const double shown_width = least_of(wide, (double)width / ratio);
  const double shown_height = least_of(high, (double)height / ratio);
  box[0] = (wide - shown_width) / 2;
  box[1] = (high - shown_height) / 2;
  box[2] = box[0] + shown_width;
  box[3] = box[1] + shown_height;
}

/* The largest centred area with the image's aspect ratio in height x width. */
typedef struct {
  long left, top, width, height;
} Inside;

static Inside letterbox_area(double high, double wide, long height, long width) {
  const double ratio = least_of((double)height / high, (double)width / wide);
  Inside area = {0, 0, (long)most_of(1, rint(wide * ratio)), (long)most_of(1, rint(high * ratio))};
  area.left = (width - area.width) / 2;
  area.top = (height - area.height) / 2;
  return area;
}

/* The whole image, centred in a border. */
static const char *letterbox(const Image *image, const TenonPreprocessing *how, const double *whole, unsigned char *to) {
  const Inside area = letterbox_area((double)image->height, (double)image->width, how->height, how->width);
  const size_t c = (size_t)image->channels, row = (size_t)area.width * c;
  unsigned char *inner = malloc((size_t)area.height * row);
  if (inner == NULL) return IMAGE_MEMORY;
  const char *problem = resize_box(image, whole, how->sampling, inner, area.height, area.width);
  memset(to, how->border, (size_t)how->height * (size_t)how->width * c);
  for (long y = 0; problem == NULL && y < area.height; y++)
    memcpy(to + ((size_t)(y + area.top) * (size_t)how->width + (size_t)area.left) * c, inner + (size_t)y * row, row);
  free(inner);
  return problem;
}

/* The part of an image of high x wide that an input of height x width shows; larger than the image with letterbox. */
static void view_of(const TenonPreprocessing *how, double high, double wide, long height, long width, double *box) {
  box[0] = box[1] = 0;
  box[2] = wide;
  box[3] = high;
  if (how->fit == FIT_CROP) cropped_box(how, high, wide, height, width, box);
  if (how->fit != FIT_LETTERBOX) return;
  const Inside area = letterbox_area(high, wide, height, width);
  const double across = wide / (double)area.width, down = high / (double)area.height;
  box[0] = (double)-area.left * across;
  box[1] = (double)-area.top * down;
  box[2] = (double)(width - area.left) * across;
  box[3] = (double)(height - area.top) * down;
}

void tenon_image_view(const TenonPreprocessing *how, long height, long width, double *box) {
  if (!how->whole) {
    view_of(how, (double)height, (double)width, how->height, how->width, box);
    return;
  }
  view_of(how, (double)how->height, (double)how->width, how->inner_height, how->inner_width, box);
  for (int i = 0; i < 4; i++) box[i] *= i & 1 ? (double)height / (double)how->height : (double)width / (double)how->width;
}

const char *tenon_fit_image(Image *image, const TenonPreprocessing *how, unsigned char **fitted) {
  const char *problem = convert_image(image, how->channels);
  if (problem != NULL) return problem;
  *fitted = malloc((size_t)how->height * (size_t)how->width * (size_t)how->channels);
  if (*fitted == NULL) return IMAGE_MEMORY;
  double box[4] = {0, 0, (double)image->width, (double)image->height};
  if (how->whole) return resize_smoothly(image, box, SAMPLING_SMOOTH, *fitted, how->height, how->width);
  if (how->fit == FIT_LETTERBOX) return letterbox(image, how, box, *fitted);
  if (how->fit == FIT_CROP)
    cropped_box(how, (double)image->height, (double)image->width, how->height, how->width, box);
  return resize_box(image, box, how->sampling, *fitted, how->height, how->width);
}

/* ------------------------------------------------------------------------------------------------- numbers */

/* Round to `digits` binary digits and exponents of at least `least`, ties to even. */
static double rounded_to(double value, int digits, int least) {
  int exponent;
  (void)frexp(value, &exponent);
  if (exponent < least) exponent = least;
  return ldexp(rint(ldexp(value, digits - exponent)), exponent - digits);
}

/* The bits of an IEEE 754 binary16 number. */
static uint16_t half_bits(float value) {
  const double near = rounded_to(fabs((double)value), 11, -13);
  const uint16_t sign = signbit(value) ? 0x8000 : 0;
  if (!(near < 65536)) return (uint16_t)(sign | (isnan(value) ? 0x7e00 : 0x7c00));
  int exponent;
  const double part = frexp(near, &exponent);
  if (near == 0) return sign;
  if (exponent < -13) return (uint16_t)(sign | (uint16_t)ldexp(near, 24));
  return (uint16_t)(sign | ((exponent + 14) << 10) | ((uint16_t)ldexp(part, 11) & 0x3ff));
}

/* Store a value as an element of an input; returns 0 for an unsupported type. */
static int put_value(const char *type, unsigned char *to, size_t at, float value) {
  if (strcmp(type, "f32") == 0) {
    memcpy(to + at * sizeof value, &value, sizeof value);
  } else if (strcmp(type, "f64") == 0) {
    const double wide = (double)value;
    memcpy(to + at * sizeof wide, &wide, sizeof wide);
  } else if (strcmp(type, "f16") == 0) {
    const uint16_t bits = half_bits(value);
    memcpy(to + at * sizeof bits, &bits, sizeof bits);
  } else if (strcmp(type, "u8") == 0) {
    to[at] = (unsigned char)most_of(0, least_of(255, (double)rintf(value)));
  } else if (strcmp(type, "i8") == 0) {
    to[at] = (unsigned char)(int8_t)most_of(-128, least_of(127, (double)rintf(value)));
  } else {
    return 0;
  }
  return 1;
}

int tenon_put_pixels(const unsigned char *fitted, const TenonPreprocessing *how, const char *type, unsigned char *to) {
  const size_t c = (size_t)how->channels, plane = (size_t)how->height * (size_t)how->width;
  if (how->whole) {
    memcpy(to, fitted, plane * c);
    return 1;
  }
  for (size_t k = 0; k < c; k++) {
    const float mean = (float)how->mean[how->means > 1 ? k : 0], scale = (float)how->scale[how->scales > 1 ? k : 0];
    const size_t from = how->blue_first ? c - 1 - k : k;
    for (size_t i = 0; i < plane; i++) {
      const float centred = (float)fitted[i * c + from] - mean;
      if (!put_value(type, to, how->last ? i * c + k : k * plane + i, centred * scale)) return 0;
    }
  }
  return 1;
}
