/* BLAKE2b (RFC 7693, without a key), and the fast checksum of files (bundle/checksum.py). */

#include "digest.h"
#include "processor.h"

#include <string.h>

static const uint64_t start[8] = {
    0x6a09e667f3bcc908u, 0xbb67ae8584caa73bu, 0x3c6ef372fe94f82bu, 0xa54ff53a5f1d36f1u,
    0x510e527fade682d1u, 0x9b05688c2b3e6c1fu, 0x1f83d9abfb41bd6bu, 0x5be0cd19137e2179u,
};

static const uint8_t order[12][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4}, {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13}, {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11}, {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5}, {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0},
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
};

static uint64_t little(const uint8_t *bytes) {
  uint64_t word = 0;
  for (int i = 7; i >= 0; i--) word = word << 8 | bytes[i];
  return word;
}

static uint64_t rotated(uint64_t word, int by) { return word >> by | word << (64 - by); }

static void mix(uint64_t *v, int a, int b, int c, int d, uint64_t x, uint64_t y) {
  v[a] += v[b] + x;
  v[d] = rotated(v[d] ^ v[a], 32);
  v[c] += v[d];
  v[b] = rotated(v[b] ^ v[c], 24);
  v[a] += v[b] + y;
  v[d] = rotated(v[d] ^ v[a], 16);
  v[c] += v[d];
  v[b] = rotated(v[b] ^ v[c], 63);
}

static void compress(Blake2b *state, const uint8_t *block, int last) {
  uint64_t v[16], m[16];
  for (int i = 0; i < 16; i++) m[i] = little(block + 8 * i);
  for (int i = 0; i < 8; i++) v[i] = state->h[i], v[i + 8] = start[i];
  v[12] ^= state->total;
  if (last) v[14] = ~v[14];
#if defined(__x86_64__) && defined(__clang__)
#pragma clang loop unroll(full) /* twice as fast; elsewhere the size counts */
#endif
  for (int round = 0; round < 12; round++) {
    const uint8_t *s = order[round];
    for (int i = 0; i < 4; i++) mix(v, i, 4 + i, 8 + i, 12 + i, m[s[2 * i]], m[s[2 * i + 1]]);
    for (int i = 0; i < 4; i++)
      mix(v, i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4, m[s[8 + 2 * i]], m[s[9 + 2 * i]]);
  }
  for (int i = 0; i < 8; i++) state->h[i] ^= v[i] ^ v[i + 8];
}

void tn_blake2b_start(Blake2b *state, size_t digest_size) {
  memset(state, 0, sizeof *state);
  memcpy(state->h, start, sizeof start);
  state->h[0] ^= 0x01010000u ^ digest_size;
  state->digest_size = digest_size;
}

void tn_blake2b_add(Blake2b *state, const void *data, size_t size) {
  const uint8_t *from = data;
  while (size > 0) {
    if (state->filled == sizeof state->block) { /* not the last one: there is more */
      state->total += sizeof state->block;
      compress(state, state->block, 0);
      state->filled = 0;
    }
    const size_t room = sizeof state->block - state->filled, now = size < room ? size : room;
    memcpy(state->block + state->filled, from, now);
    state->filled += now;
    from += now;
    size -= now;
  }
}

void tn_blake2b_end(Blake2b *state, uint8_t *digest) {
  state->total += state->filled;
  memset(state->block + state->filled, 0, sizeof state->block - state->filled);
  compress(state, state->block, 1);
  for (size_t i = 0; i < state->digest_size; i++) digest[i] = (uint8_t)(state->h[i / 8] >> 8 * (i % 8));
}

void tn_hex(const uint8_t *bytes, size_t count, char *text) {
  for (size_t i = 0; i < count; i++) {
    text[2 * i] = "0123456789abcdef"[bytes[i] >> 4];
    text[2 * i + 1] = "0123456789abcdef"[bytes[i] & 15];
  }
  text[2 * count] = 0;
}

enum { WORDS = 8192, BLOCK = 2048, SUMS = 64 };

static const uint64_t factor = 0x9E3779B97F4A7C15u;

static uint64_t native(const uint8_t *bytes) {
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
  uint64_t word;
  memcpy(&word, bytes, sizeof word);
  return word;
#else
  return little(bytes);
#endif
}

/* A block of the rows' columns; four rows at a time, so that the sums stay in registers meanwhile. */
#define FOLD_FUNCTION(name, attributes)                                                                      \
  attributes static void name(uint64_t *restrict sums, const uint8_t *restrict data, size_t rows) {          \
    const size_t row = 8 * (size_t)WORDS;                                                                    \
    for (; rows >= 4; rows -= 4, data += 4 * row)                                                            \
      for (size_t i = 0; i < BLOCK; i++) {                                                                   \
        const uint8_t *at = data + 8 * i;                                                                    \
        const uint64_t two = (sums[i] * factor + native(at)) * factor + native(at + row);                    \
        sums[i] = (two * factor + native(at + 2 * row)) * factor + native(at + 3 * row);                     \
      }                                                                                                      \
    for (; rows > 0; rows--, data += row)                                                                    \
      for (size_t i = 0; i < BLOCK; i++) sums[i] = sums[i] * factor + native(data + 8 * i);                  \
  }

FOLD_FUNCTION(fold_plain, )

#if defined(__x86_64__) && defined(__GNUC__)
FOLD_FUNCTION(fold_avx2, __attribute__((target("avx2"))))
FOLD_FUNCTION(fold_avx512, __attribute__((target("avx512f,avx512dq"))))

static void fold(uint64_t *sums, const uint8_t *data, size_t rows) {
  enum { AVX512 = 1 << TN_AVX512F | 1 << TN_AVX512DQ };
  const uint32_t has = tn_processor_bits();
  if ((has & AVX512) == AVX512) fold_avx512(sums, data, rows);
  else if (has & 1 << TN_AVX2) fold_avx2(sums, data, rows);
  else fold_plain(sums, data, rows);
}
#else
static void fold(uint64_t *sums, const uint8_t *data, size_t rows) { fold_plain(sums, data, rows); }
#endif

static void add_words(Blake2b *state, uint64_t *words, size_t count) {
  for (size_t i = 0; i < count; i++) words[i] = native((const uint8_t *)(words + i));
  tn_blake2b_add(state, words, count * sizeof *words);
}

/* The bytes of a block behind the last complete row; zeros complete the last word. */
static void fold_tail(uint64_t *sums, const uint8_t *tail, size_t size) {
  uint64_t last = 0;
  const size_t words = size / 8 < BLOCK ? size / 8 : BLOCK;
  for (size_t i = 0; i < words; i++) sums[i] = sums[i] * factor + native(tail + 8 * i);
  if (words == BLOCK || size % 8 == 0) return;
  memcpy(&last, tail + 8 * words, size % 8);
  sums[words] = sums[words] * factor + native((const uint8_t *)&last);
}

void tn_checksum(const uint8_t *data, size_t size, uint8_t digest[8]) {
  const size_t row = 8 * (size_t)WORDS, rows = size / row, rest = size % row;
  const uint8_t *tail = data + rows * row;
  uint64_t all[SUMS + 1] = {[SUMS] = size};
  Blake2b state;
  tn_blake2b_start(&state, 8);
  for (size_t first = 0; first < WORDS && (rows > 0 || 8 * first < rest); first += BLOCK) {
    uint64_t sums[BLOCK] = {0};
    fold(sums, data + 8 * first, rows);
    if (8 * first < rest) fold_tail(sums, tail + 8 * first, rest - 8 * first);
    for (size_t i = 0; i < BLOCK; i++) {
      const uint64_t mixed = (sums[i] ^ sums[i] >> 32) * (factor * (2 * (first + i) + 1));
      all[i % SUMS] += mixed ^ mixed >> 32;
    }
  }
  add_words(&state, all, SUMS + 1);
  tn_blake2b_end(&state, digest);
}
