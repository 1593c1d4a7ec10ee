/* Functions that compilers call implicitly, for targets without a C library.  Compile with -fno-builtin, so that the
   loops do not become recursive calls. */

#include <stddef.h>

void *memcpy(void *restrict to, const void *restrict from, size_t count);
void *memmove(void *to, const void *from, size_t count);
void *memset(void *to, int value, size_t count);
int memcmp(const void *a, const void *b, size_t count);

void *memcpy(void *restrict to, const void *restrict from, size_t count) {
  unsigned char *t = to;
  const unsigned char *f = from;
  for (size_t i = 0; i < count; i++) t[i] = f[i];
  return to;
}

void *memmove(void *to, const void *from, size_t count) {
  unsigned char *t = to;
  const unsigned char *f = from;
  if (t < f) {
    for (size_t i = 0; i < count; i++) t[i] = f[i];
  } else {
    for (size_t i = count; i > 0; i--) t[i - 1] = f[i - 1];
  }
  return to;
}

void *memset(void *to, int value, size_t count) {
  unsigned char *t = to;
  for (size_t i = 0; i < count; i++) t[i] = (unsigned char)value;
  return to;
}

int memcmp(const void *a, const void *b, size_t count) {
  const unsigned char *x = a, *y = b;
  for (size_t i = 0; i < count; i++) {
    if (x[i] != y[i]) return x[i] < y[i] ? -1 : 1;
  }
  return 0;
}

#if defined(__arm__)
/* The same under the names of the ARM run-time ABI (IHI 0043); note the order of memset's arguments. */
#define COPY(name, function)                                  \
  void name(void *to, const void *from, size_t count);        \
  void name(void *to, const void *from, size_t count) {       \
    function(to, from, count);                                \
  }
COPY(__aeabi_memcpy, memcpy)
COPY(__aeabi_memcpy4, memcpy)
COPY(__aeabi_memcpy8, memcpy)
COPY(__aeabi_memmove, memmove)
COPY(__aeabi_memmove4, memmove)
COPY(__aeabi_memmove8, memmove)

#define FILL(name)                                 \
  void name(void *to, size_t count, int value);    \
  void name(void *to, size_t count, int value) {   \
    memset(to, value, count);                      \
  }
FILL(__aeabi_memset)
FILL(__aeabi_memset4)
FILL(__aeabi_memset8)

#define CLEAR(name)                     \
  void name(void *to, size_t count);    \
  void name(void *to, size_t count) {   \
    memset(to, 0, count);               \
  }
CLEAR(__aeabi_memclr)
CLEAR(__aeabi_memclr4)
CLEAR(__aeabi_memclr8)
#endif

#if defined(__arm__) && !defined(__ARM_PCS_VFP) && (__ARM_FP & 4)
/* Floats in general registers with an FPU that cannot round, as on Android: libraries for the emulator take them in
   those of the FPU.  From `whole` on a number has no fraction. */
#define ROUND(type, integer, whole, floor, ceil, trunc, copysign)          \
  type floor(type x);                                                      \
  type ceil(type x);                                                       \
  type trunc(type x);                                                      \
  type trunc(type x) {                                                     \
    return x > -whole && x < whole ? copysign((type)(integer)x, x) : x;    \
  }                                                                        \
  type floor(type x) {                                                     \
    const type rounded = trunc(x);                                         \
    return rounded > x ? rounded - 1 : rounded;                            \
  }                                                                        \
  type ceil(type x) {                                                      \
    return -floor(-x);                                                     \
  }
ROUND(float, int, 0x1p23f, floorf, ceilf, truncf, __builtin_copysignf)
ROUND(double, long long, 0x1p52, floor, ceil, trunc, __builtin_copysign)
#endif
