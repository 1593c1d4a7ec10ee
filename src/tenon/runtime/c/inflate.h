/* Decompression of zlib streams (RFC 1950, 1951). */

#ifndef TENON_INFLATE_H
#define TENON_INFLATE_H

#include <stddef.h>

enum { MOST_INFLATION = 1032 }; /* the result has at most so many times the bytes of the stream */

/* Decompress to exactly `size` bytes; returns 0 if that cannot be done.  The checksum is not verified: those of PNG
   chunks are. */
int tenon_inflate(const unsigned char *data, size_t count, unsigned char *to, size_t size);

#endif
