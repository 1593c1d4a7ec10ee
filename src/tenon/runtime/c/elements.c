/* Elements of a network's inputs and outputs as numbers. */

#include "elements.h"

#include <math.h>
#include <string.h>

/* An IEEE 754 binary16 value. */
static double half(const uint8_t *from) {
  uint16_t bits;
  memcpy(&bits, from, sizeof bits);
  const int exponent = bits >> 10 & 31;
  double value = (bits & 1023) + (exponent ? 1024 : 0);
  for (int i = exponent ? exponent : 1; i < 25; i++) value /= 2;
  for (int i = 25; i < exponent; i++) value *= 2;
  if (exponent == 31) value = bits & 1023 ? NAN : INFINITY;
  return bits & 0x8000 ? -value : value;
}

double tenon_element(const uint8_t *region, const TenonPort *port, size_t at) {
  const uint8_t *from = region + port->offset;
#define READ_AS(name, c_type)                       \
  if (strcmp(port->type, name) == 0) {              \
    c_type value;                                   \
    memcpy(&value, from + at * sizeof value, sizeof value); \
    return (double)value;                           \
  }
  READ_AS("f32", float)
  READ_AS("f64", double)
  READ_AS("i64", int64_t)
  READ_AS("i32", int32_t)
  READ_AS("i16", int16_t)
  READ_AS("i8", int8_t)
  READ_AS("u64", uint64_t)
  READ_AS("u32", uint32_t)
  READ_AS("u16", uint16_t)
#undef READ_AS
  return strcmp(port->type, "f16") == 0 ? half(from + 2 * at) : from[at];
}

size_t tenon_element_count(const TenonPort *port) {
  size_t count = 1;
  for (int i = 0; i < port->rank; i++) count *= (size_t)port->extents[i];
  return count;
}
