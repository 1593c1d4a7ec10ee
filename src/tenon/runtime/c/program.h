/* Parts that main programs of bundles with texts or speech have in common: names of the bundle, and how they end. */

#ifndef TENON_PROGRAM_H
#define TENON_PROGRAM_H

#define TENON_JOIN_(a, b) a##b
#define TENON_JOIN(a, b) TENON_JOIN_(a, b)
#define OF_BUNDLE(what) TENON_JOIN(TENON_ENTRY, what)
#define BYTES_OF(what) TENON_JOIN(TENON_PREFIX, what)
#define STRING_(a) #a
#define STRING(a) STRING_(a)

/* End with a line on standard error.  `value`, which names what is wrong, may be "". */
#define FAIL(what, value) \
  (fprintf(stderr, "%s: %s%s%s\n", STRING(TENON_ENTRY), (value), *(value) ? ": " : "", (what)), exit(2))

extern const uint8_t tenon_text_tables[];
extern const size_t tenon_text_tables_size;

#endif
