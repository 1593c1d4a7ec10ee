/* What programs and pages of a network that reads texts have in common: names of the bundle, and its memory. */

#ifndef TENON_TEXT_PROGRAM_H
#define TENON_TEXT_PROGRAM_H

#include TENON_TEXT_HEADER

#define TENON_JOIN_(a, b) a##b
#define TENON_JOIN(a, b) TENON_JOIN_(a, b)
#define OF_BUNDLE(what) TENON_JOIN(TENON_ENTRY, what)
#define BYTES_OF(what) TENON_JOIN(TENON_PREFIX, what)

extern const uint8_t tenon_weights[];
extern const uint8_t tenon_text_tables[];
extern const size_t tenon_text_tables_size;

TENON_MEM_ALIGN(64) static uint8_t network[BYTES_OF(MUTABLE_MEM_SIZE)];
TENON_MEM_ALIGN(64) static uint8_t scratch[BYTES_OF(ACTIVATIONS_MEM_SIZE)];

/* Programs end with a line on standard error. */
#ifdef TENON_TEXT_MAIN
#include <stdio.h>
#include <stdlib.h>

#define STRING_(a) #a
#define STRING(a) STRING_(a)

static void fail(const char *what, const char *value) {
  fprintf(stderr, "%s: %s%s%s\n", STRING(TENON_ENTRY), value, *value ? ": " : "", what);
  exit(2);
}
#endif

#endif
