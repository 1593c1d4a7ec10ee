/* The functions of a C library that WebAssembly modules of pages and npm packages call, and their memory.

   Memory from `allocate` is valid until the next `reset`. */

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT(name) __attribute__((export_name(name)))

enum { PAGE = 65536, ALIGNED = 16 };

extern unsigned char __heap_base;
static uintptr_t used; /* the end of what is allocated; 0: nothing is */
static uintptr_t kept; /* the end of what `reset` leaves; 0: nothing */

/* Memory is not reused before `reset`: a call needs little. */
void *malloc(size_t size) {
  if (used == 0) used = (uintptr_t)&__heap_base;
  const uintptr_t start = (used + ALIGNED - 1) / ALIGNED * ALIGNED;
  const size_t have = __builtin_wasm_memory_size(0) * (size_t)PAGE;
  if (size > SIZE_MAX - PAGE - start) return NULL;
  if (start + size > have) {
    const size_t pages = (start + size - have + PAGE - 1) / PAGE;
    if (__builtin_wasm_memory_grow(0, pages) == SIZE_MAX) return NULL;
  }
  used = start + size;
  return (void *)start;
}

void free(void *memory) { (void)memory; }

void *calloc(size_t count, size_t size) {
  void *memory = malloc(count * size);
  return memory == NULL ? NULL : memset(memory, 0, count * size);
}

char *strchr(const char *text, int character) {
  for (; *text != (char)character; text++)
    if (*text == 0) return NULL;
  return (char *)(uintptr_t)text;
}

int strcmp(const char *a, const char *b) {
  while (*a && *a == *b) a++, b++;
  return (unsigned char)*a - (unsigned char)*b;
}

double ldexp(double value, int exponent) {
  for (; exponent > 0; exponent--) value *= 2;
  for (; exponent < 0; exponent++) value /= 2;
  return value;
}

double frexp(double value, int *exponent) {
  *exponent = 0;
  if (value == 0 || isnan(value) || isinf(value)) return value;
  for (; fabs(value) >= 1; ++*exponent) value /= 2;
  for (; fabs(value) < 0.5; --*exponent) value *= 2;
  return value;
}

EXPORT("reset") void tenon_web_reset(void) { used = kept; }

/* Memory that was allocated so far is valid for ever. */
void tenon_web_keep(void);
void tenon_web_keep(void) { kept = used; }

EXPORT("allocate") void *tenon_web_allocate(size_t size) { return malloc(size); }
