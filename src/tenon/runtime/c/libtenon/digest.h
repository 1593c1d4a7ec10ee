/* Digests and checksums. */

#ifndef TENON_DIGEST_H
#define TENON_DIGEST_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
  uint64_t h[8], total;
  uint8_t block[128];
  size_t filled, digest_size;
} Blake2b;
void tn_blake2b_start(Blake2b *state, size_t digest_size);
void tn_blake2b_add(Blake2b *state, const void *data, size_t size);
void tn_blake2b_end(Blake2b *state, uint8_t *digest);
void tn_hex(const uint8_t *bytes, size_t count, char *text); /* 2 * count + 1 characters */
void tn_checksum(const uint8_t *data, size_t size, uint8_t digest[8]);

#endif
