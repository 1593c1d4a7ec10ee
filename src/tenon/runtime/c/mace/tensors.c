/* Tensors of the program and of the network: formats of images, types of elements. */

#include "tensors.h"

#include <string.h>

TenonType mc_type(int32_t data_type) {
  static const TenonType types[] = {TENON_OTHER_TYPE, TENON_F32, TENON_U8,  TENON_F16, TENON_I32,
                                    TENON_F16,        TENON_BF16, TENON_I16, TENON_I8};
  return data_type >= 0 && data_type < (int32_t)(sizeof types / sizeof *types) ? types[data_type] : TENON_OTHER_TYPE;
}

/* ------------------------------------------------------------------------------------------------- formats of images */

static const int to_front[4] = {0, 3, 1, 2}, to_back[4] = {0, 2, 3, 1}, straight[4] = {0, 1, 2, 3};

static void permuted(const int64_t *shape, const int *axes, int64_t *result) {
  for (int i = 0; i < 4; i++) result[i] = shape[axes[i]];
}

Placement mc_placement(const TenonTensor *tensor, int format, const MaceCoreTensor *own) {
  Placement placement = {{0}, 0};
  memcpy(placement.shape, own->shape, sizeof placement.shape);
  if (own->rank != 4 || tensor->rank != 4 || (own->format != NHWC && own->format != NCHW)) return placement;
  int64_t other[4];
  permuted(own->shape, own->format == NHWC ? to_front : to_back, other);
  const int same = memcmp(own->shape, tensor->shape, sizeof other) == 0;
  const int fits = memcmp(other, tensor->shape, sizeof other) == 0;
  if (format == FORMAT_UNKNOWN ? !fits || same : format == own->format) return placement;
  memcpy(placement.shape, other, sizeof other);
  placement.turned = own->format;
  return placement;
}

/* ------------------------------------------------------------------------------------------------- types of elements */

static size_t size_of(TenonType type) {
  switch (type) {
  case TENON_I8: case TENON_U8: case TENON_BOOL: return 1;
  case TENON_F16: case TENON_BF16: case TENON_I16: case TENON_U16: return 2;
  case TENON_F32: case TENON_I32: case TENON_U32: return 4;
  case TENON_F64: case TENON_I64: case TENON_U64: return 8;
  default: return 0;
  }
}

static double float_of_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return (double)value;
}

static uint32_t bits_of_float(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

static double half_value(uint16_t half) {
  const uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = half >> 10 & 31, fraction = half & 1023;
  if (exponent == 0) return (sign ? -1.0 : 1.0) * fraction / 16777216.0;
  return float_of_bits(sign | (exponent == 31 ? 255 : exponent + 112) << 23 | fraction << 13);
}

/* Rounds half to even, as conversions of processors do. */
static uint16_t half_bits(float value) {
  const uint32_t bits = bits_of_float(value), magnitude = bits & 0x7fffffff;
  const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
  if (magnitude > 0x7f800000) return (uint16_t)(sign | 0x7e00);
  if (magnitude >= 0x477ff000) return (uint16_t)(sign | 0x7c00);
  if (magnitude < 0x33000001) return sign;
  const int shift = magnitude < 0x38800000 ? (int)(126 - (magnitude >> 23)) : 13;
  const uint32_t base = magnitude < 0x38800000 ? (magnitude & 0x7fffff) | 0x800000 : magnitude - 0x38000000;
  const uint32_t half = 1u << (shift - 1), kept = base >> shift, rest = base & ((1u << shift) - 1);
  return (uint16_t)(sign | (kept + (rest > half || (rest == half && (kept & 1)))));
}

static uint16_t bf16_bits(float value) {
  const uint32_t bits = bits_of_float(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 64);
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

#define LOAD(type) \
  do { \
    type value; \
    memcpy(&value, at, sizeof value); \
    return (double)value; \
  } while (0)

static double load(TenonType type, const uint8_t *at) {
  uint16_t bits;
  memcpy(&bits, at, size_of(type) == 2 ? 2 : 1);
  switch (type) {
  case TENON_F32: LOAD(float);
  case TENON_F64: LOAD(double);
  case TENON_F16: return half_value(bits);
  case TENON_BF16: return float_of_bits((uint32_t)bits << 16);
  case TENON_I8: LOAD(int8_t);
  case TENON_I16: LOAD(int16_t);
  case TENON_U16: LOAD(uint16_t);
  case TENON_I32: LOAD(int32_t);
  case TENON_U32: LOAD(uint32_t);
  case TENON_I64: LOAD(int64_t);
  case TENON_U64: LOAD(uint64_t);
  default: LOAD(uint8_t);
  }
}

/* Saturates; NaN becomes the lowest. */
#define STORE(type, low, high) \
  do { \
    const type value = !(number > (low)) ? (type)(low) : number >= (high) ? (type)(high) : (type)number; \
    memcpy(at, &value, sizeof value); \
    return; \
  } while (0)

static void store(TenonType type, double number, uint8_t *at) {
  const float single = (float)number;
  uint16_t bits;
  switch (type) {
  case TENON_F32: memcpy(at, &single, sizeof single); return;
  case TENON_F64: memcpy(at, &number, sizeof number); return;
  case TENON_F16: bits = half_bits(single), memcpy(at, &bits, sizeof bits); return;
  case TENON_BF16: bits = bf16_bits(single), memcpy(at, &bits, sizeof bits); return;
  case TENON_I8: STORE(int8_t, INT8_MIN, INT8_MAX);
  case TENON_I16: STORE(int16_t, INT16_MIN, INT16_MAX);
  case TENON_U16: STORE(uint16_t, 0, UINT16_MAX);
  case TENON_I32: STORE(int32_t, INT32_MIN, INT32_MAX);
  case TENON_U32: STORE(uint32_t, 0, UINT32_MAX);
  case TENON_I64: STORE(int64_t, -9223372036854774784.0, 9223372036854774784.0);
  case TENON_U64: STORE(uint64_t, 0, 18446744073709549568.0);
  case TENON_BOOL: *at = number != 0; return;
  default: STORE(uint8_t, 0, UINT8_MAX);
  }
}

static int is_float(TenonType type) {
  return type == TENON_F32 || type == TENON_F64 || type == TENON_F16 || type == TENON_BF16;
}

static double rounded(double number) { /* half away from zero; the large ones are whole */
  if (!(number > -4503599627370496.0 && number < 4503599627370496.0)) return number;
  return (double)(int64_t)(number < 0 ? number - 0.5 : number + 0.5);
}

typedef struct {
  TenonType from, to;
  double scale, zero_point; /* of quantised integers on one side; scale 0: none */
  int to_integers;
} Conversion;

static void convert(const Conversion *how, const uint8_t *from, uint8_t *to) {
  double number = load(how->from, from);
  if (how->scale != 0)
    number = how->to_integers ? rounded(number / how->scale) + how->zero_point : (number - how->zero_point) * how->scale;
  store(how->to, number, to);
}

/* ------------------------------------------------------------------------------------------------------------ copies */

/* The elements of `from`, whose axes are `axes` of `shape`'s, in the order of `to`; `shape` is that of `to`. */
static void copy_turned(const Conversion *how, const int64_t *shape, const int *axes, const uint8_t *from, uint8_t *to) {
  int64_t step[4], step_of[4], from_shape[4];
  for (int i = 0; i < 4; i++) from_shape[axes[i]] = shape[i];
  step[3] = 1;
  for (int i = 2; i >= 0; i--) step[i] = step[i + 1] * from_shape[i + 1];
  for (int i = 0; i < 4; i++) step_of[i] = step[axes[i]];
  const size_t width = size_of(how->from), result = size_of(how->to);
  const int as_is = how->from == how->to && how->scale == 0;
  for (int64_t a = 0; a < shape[0]; a++)
    for (int64_t b = 0; b < shape[1]; b++)
      for (int64_t c = 0; c < shape[2]; c++) {
        const uint8_t *row = from + (size_t)(a * step_of[0] + b * step_of[1] + c * step_of[2]) * width;
        const size_t stride = (size_t)step_of[3] * width;
        if (as_is && width == 4)
          for (int64_t d = 0; d < shape[3]; d++, row += stride, to += 4) memcpy(to, row, 4);
        else if (as_is)
          for (int64_t d = 0; d < shape[3]; d++, row += stride, to += width) memcpy(to, row, width);
        else
          for (int64_t d = 0; d < shape[3]; d++, row += stride, to += result) convert(how, row, to);
      }
}

static void copy_straight(const Conversion *how, const int64_t *shape, int rank, const uint8_t *from, uint8_t *to) {
  size_t count = 1;
  for (int i = 0; i < rank; i++) count *= (size_t)shape[i];
  const size_t width = size_of(how->from), result = size_of(how->to);
  if (how->from == how->to && how->scale == 0) {
    memcpy(to, from, count * width);
    return;
  }
  for (; count > 0; count--, from += width, to += result) convert(how, from, to);
}

static int copy(const TenonTensor *tensor, const int64_t *shape, const int *axes, Conversion how, const void *from,
                void *to) {
  const TenonType own = how.to_integers ? how.from : how.to;
  if (size_of(how.from) == 0 || size_of(how.to) == 0) return 0;
  if (tensor->quantised && is_float(own) && !is_float(tensor->type)) {
    how.scale = tensor->scale;
    how.zero_point = tensor->zero_point;
  }
  if (axes == straight) copy_straight(&how, shape, tensor->rank, from, to);
  else copy_turned(&how, shape, axes, from, to);
  return 1;
}

int mc_to_network(const TenonTensor *tensor, const int64_t *shape, const Placement *placement, TenonType type,
                  const void *from, void *to) {
  const Conversion how = {type, tensor->type, 0, 0, 1};
  const int *axes = placement->turned == 0 ? straight : placement->turned == NHWC ? to_front : to_back;
  return copy(tensor, shape, axes, how, from, to);
}

int mc_from_network(const TenonTensor *tensor, const int64_t *shape, const Placement *placement, TenonType type,
                    const void *from, void *to) {
  const Conversion how = {tensor->type, type, 0, 0, 0};
  if (placement->turned == 0) return copy(tensor, shape, straight, how, from, to);
  int64_t own[4];
  const int *axes = placement->turned == NHWC ? to_back : to_front;
  permuted(shape, axes, own);
  return copy(tensor, own, axes, how, from, to);
}

/* ------------------------------------------------------------------------------------------------------ MACE's graph */

/* Protocol buffers: the next field of a message; 0 at its end, or if it is damaged. */
typedef struct {
  const uint8_t *at, *end;
} Fields;

typedef struct {
  uint64_t number, value; /* of fields of varying length: the length */
  int wire;
  const uint8_t *data;
} Field;

static int varint(Fields *fields, uint64_t *value) {
  *value = 0;
  for (int shift = 0; shift < 64 && fields->at < fields->end; shift += 7) {
    const uint8_t byte = *fields->at++;
    *value |= (uint64_t)(byte & 127) << shift;
    if (byte < 128) return 1;
  }
  return 0;
}

static int next(Fields *fields, Field *field) {
  uint64_t tag;
  if (!varint(fields, &tag)) return 0;
  field->number = tag >> 3;
  field->wire = (int)(tag & 7);
  if (field->wire == 0) return varint(fields, &field->value);
  if (field->wire == 1) field->value = 8;
  else if (field->wire == 5) field->value = 4;
  else if (field->wire != 2 || !varint(fields, &field->value)) return 0;
  if (field->value > (uint64_t)(fields->end - fields->at)) return 0;
  field->data = fields->at;
  fields->at += field->value;
  return 1;
}

/* The layout of an InputOutputInfo (name 1, data_format 6, which is NHWC by default) if it has this name. */
static int format_of_info(const Field *info, const char *name) {
  Fields fields = {info->data, info->data + info->value};
  Field field;
  int named = 0, format = NHWC;
  while (next(&fields, &field)) {
    if (field.number == 1 && field.wire == 2)
      named = field.value == strlen(name) && memcmp(field.data, name, (size_t)field.value) == 0;
    if (field.number == 6 && field.wire == 0) format = (int)field.value;
  }
  return named ? format : FORMAT_UNKNOWN;
}

/* A MultiNetDef has its networks in field 3; a NetDef has input_info and output_info in 100 and 101. */
static int format_in(const uint8_t *graph, size_t size, const char *name, int depth) {
  Fields fields = {graph, graph + size};
  Field field;
  int format = FORMAT_UNKNOWN;
  while (format == FORMAT_UNKNOWN && next(&fields, &field)) {
    if (field.wire != 2) continue;
    if (field.number == 100) format = format_of_info(&field, name);
    if (field.number == 101 && format_of_info(&field, name) != FORMAT_UNKNOWN) format = NHWC;
    if (field.number == 3 && depth == 0) format = format_in(field.data, (size_t)field.value, name, 1);
  }
  return format;
}

int mc_format_of(const uint8_t *graph, size_t size, const char *name) { return format_in(graph, size, name, 0); }
