/* Decryption with AES-256-GCM (FIPS 197, NIST SP 800-38D) in constant time: no branch and no address depends on the key,
   the text or the tag, only on sizes.

   AES is bitsliced: eight blocks at a time, bit k of all their bytes in plane k.  Its S-box inverts in GF((2^4)^2), with
   z^4 = z + 1 and y^2 = y + z^3; the linear maps from and to AES's own basis are in `substitute`.  GHASH multiplies without
   carries by integer products of every fourth bit, whose sums of at most 16 stay inside the bits between; that takes a
   processor whose multiplication takes the same time for all operands, as those of 64 bits do. */

#include "encryption.h"

#include <string.h>

typedef uint64_t Plane __attribute__((vector_size(16)));
typedef struct {
  Plane bit[8];
} Planes;

enum { ROUNDS = 14, BLOCK = 16, BATCH = 128, TAG = 16, NONCE = 12 };

typedef struct {
  Planes round[ROUNDS + 1];
} Schedule;

/* ---------------------------------------------------------------------------------------------------------- planes */

/* The transposed matrix of 8 x 8 bits: bit 8 r + c becomes bit 8 c + r. */
static uint64_t transposed(uint64_t x) {
  uint64_t t = (x ^ x >> 7) & 0x00aa00aa00aa00aau;
  x ^= t ^ t << 7;
  t = (x ^ x >> 14) & 0x0000cccc0000ccccu;
  x ^= t ^ t << 14;
  t = (x ^ x >> 28) & 0x00000000f0f0f0f0u;
  return x ^ t ^ t << 28;
}

/* Byte i of block b of a half of the batch is bit 4 i + b of that half's 64 bits: eight of them are a group. */
static size_t place(int half, int group, int n) { return (size_t)(64 * half + BLOCK * (n & 3) + 2 * group + (n >> 2)); }

static void to_planes(const uint8_t *blocks, Planes *planes) {
  uint64_t words[8][2] = {{0}};
  for (int half = 0; half < 2; half++)
    for (int group = 0; group < 8; group++) {
      uint64_t bytes = 0;
      for (int n = 0; n < 8; n++) bytes |= (uint64_t)blocks[place(half, group, n)] << 8 * n;
      bytes = transposed(bytes);
      for (int k = 0; k < 8; k++) words[k][half] |= (bytes >> 8 * k & 255) << 8 * group;
    }
  memcpy(planes, words, sizeof words);
}

static void from_planes(const Planes *planes, uint8_t *blocks) {
  uint64_t words[8][2];
  memcpy(words, planes, sizeof words);
  for (int half = 0; half < 2; half++)
    for (int group = 0; group < 8; group++) {
      uint64_t bytes = 0;
      for (int k = 0; k < 8; k++) bytes |= (words[k][half] >> 8 * group & 255) << 8 * k;
      bytes = transposed(bytes);
      for (int n = 0; n < 8; n++) blocks[place(half, group, n)] = (uint8_t)(bytes >> 8 * n);
    }
}

/* ------------------------------------------------------------------------------------------------------------- AES */

/* r = a b in GF(2^4). */
static inline void times(const Plane *a, const Plane *b, Plane *r) {
  const Plane high4 = (a[1] & b[3]) ^ (a[2] & b[2]) ^ (a[3] & b[1]), high5 = (a[2] & b[3]) ^ (a[3] & b[2]);
  const Plane high6 = a[3] & b[3];
  const Plane r0 = (a[0] & b[0]) ^ high4, r1 = (a[0] & b[1]) ^ (a[1] & b[0]) ^ high4 ^ high5;
  const Plane r2 = (a[0] & b[2]) ^ (a[1] & b[1]) ^ (a[2] & b[0]) ^ high5 ^ high6;
  r[3] = (a[0] & b[3]) ^ (a[1] & b[2]) ^ (a[2] & b[1]) ^ (a[3] & b[0]) ^ high6;
  r[0] = r0, r[1] = r1, r[2] = r2;
}

static inline void square(const Plane *a, Plane *r) {
  const Plane r0 = a[0] ^ a[2], r1 = a[2], r2 = a[1] ^ a[3], r3 = a[3];
  r[0] = r0, r[1] = r1, r[2] = r2, r[3] = r3;
}

/* The inverse of a y + b is (a y + a + b) / N with N = z^3 a^2 + b (a + b), and 1 / N = N^2 N^4 N^8. */
static inline void invert(Plane *x) {
  Plane *b = x, *a = x + 4, sum[4], norm[4], power[4], inverse[4];
  for (int i = 0; i < 4; i++) sum[i] = a[i] ^ b[i];
  times(b, sum, norm);
  norm[0] ^= a[2], norm[1] ^= a[1] ^ a[2] ^ a[3], norm[2] ^= a[1], norm[3] ^= a[0] ^ a[2] ^ a[3];
  square(norm, inverse);
  square(inverse, power);
  times(inverse, power, inverse);
  square(power, power);
  times(inverse, power, inverse);
  times(a, inverse, a);
  times(sum, inverse, b);
}

static inline void substitute(Planes *planes) {
  Plane *x = planes->bit, tower[8];
  {
    const Plane t0 = x[5] ^ x[7], t1 = x[4] ^ x[6], t2 = x[2] ^ x[3], t3 = t0 ^ t2, t5 = x[1] ^ x[7];
    tower[0] = x[0] ^ t0, tower[1] = x[2], tower[2] = t1 ^ t3, tower[3] = x[3] ^ x[4];
    tower[4] = x[5] ^ t1, tower[5] = t1 ^ t5, tower[6] = t3, tower[7] = t0;
  }
  invert(tower);
  {
    const Plane *y = tower;
    const Plane t0 = y[0] ^ y[5], t1 = y[1] ^ y[2], t2 = y[3] ^ t0, t3 = y[4] ^ t2, t4 = y[6] ^ y[7];
    x[0] = ~(y[6] ^ y[0] ^ y[2]), x[1] = ~(t1 ^ t3), x[2] = y[6] ^ t2, x[3] = y[2] ^ t0;
    x[4] = y[1] ^ t3, x[5] = ~(y[3] ^ y[5] ^ t1 ^ t4), x[6] = ~(y[4] ^ t4), x[7] = t1;
  }
}

/* Row r of a column is nibble r of its 16 bits. */
static inline Plane row(Plane x, int r) {
  const Plane only = x & (Plane){0x000f000f000f000fu << 4 * r, 0x000f000f000f000fu << 4 * r};
  return r == 0 ? only : only >> 16 * r | only << (64 - 16 * r);
}

static inline Plane next_row(Plane x) {
  const uint64_t low = 0x0fff0fff0fff0fffu, first = 0x000f000f000f000fu;
  return (x >> 4 & (Plane){low, low}) | (x & (Plane){first, first}) << 12;
}

static inline void shift_rows(Planes *x) {
  for (int k = 0; k < 8; k++) x->bit[k] = row(x->bit[k], 0) | row(x->bit[k], 1) | row(x->bit[k], 2) | row(x->bit[k], 3);
}

/* 2 (a + a') + a' + (a + a')'' where ' is the next row. */
static inline void mix_columns(Planes *x) {
  Plane sum[8], rest[8];
  for (int k = 0; k < 8; k++) {
    const Plane next = next_row(x->bit[k]);
    sum[k] = x->bit[k] ^ next;
    rest[k] = next ^ next_row(next_row(sum[k]));
  }
  for (int k = 0; k < 8; k++) {
    const int reduced = k == 1 || k == 3 || k == 4;
    x->bit[k] = rest[k] ^ sum[(k + 7) % 8];
    if (reduced) x->bit[k] ^= sum[7];
  }
}

static inline void add_key(Planes *x, const Planes *key) {
  for (int k = 0; k < 8; k++) x->bit[k] ^= key->bit[k];
}

/* Eight blocks. */
static void encrypt(const Schedule *schedule, uint8_t *blocks) {
  Planes x;
  to_planes(blocks, &x);
  add_key(&x, &schedule->round[0]);
  for (int round = 1; round <= ROUNDS; round++) {
    substitute(&x);
    shift_rows(&x);
    if (round < ROUNDS) mix_columns(&x);
    add_key(&x, &schedule->round[round]);
  }
  from_planes(&x, blocks);
}

static void substitute_word(uint8_t *word) {
  uint8_t blocks[BATCH] = {0};
  Planes x;
  memcpy(blocks, word, 4);
  to_planes(blocks, &x);
  substitute(&x);
  from_planes(&x, blocks);
  memcpy(word, blocks, 4);
}

static void expand(const uint8_t *key, Schedule *schedule) {
  uint8_t words[4 * 4 * (ROUNDS + 1)], blocks[BATCH], constant = 1;
  memcpy(words, key, TENON_KEY_BYTES);
  for (size_t i = TENON_KEY_BYTES; i < sizeof words; i += 4) {
    uint8_t word[4];
    memcpy(word, words + i - 4, 4);
    if (i % TENON_KEY_BYTES == 0) {
      const uint8_t first = word[0];
      memmove(word, word + 1, 3);
      word[3] = first;
    }
    if (i % BLOCK == 0) substitute_word(word);
    if (i % TENON_KEY_BYTES == 0) word[0] ^= constant, constant = (uint8_t)(constant << 1);
    for (int n = 0; n < 4; n++) words[i + (size_t)n] = words[i - TENON_KEY_BYTES + (size_t)n] ^ word[n];
  }
  for (int round = 0; round <= ROUNDS; round++) {
    for (int b = 0; b < BATCH; b += BLOCK) memcpy(blocks + b, words + BLOCK * round, BLOCK);
    to_planes(blocks, &schedule->round[round]);
  }
  tn_wipe(words, sizeof words);
  tn_wipe(blocks, sizeof blocks);
}

/* ----------------------------------------------------------------------------------------------------------- GHASH */

typedef struct {
  uint64_t high, low; /* the first 8 bytes of a block, and the others, as big-endian numbers */
} Element;

static uint64_t big(const uint8_t *bytes) {
  uint64_t word = 0;
  for (int i = 0; i < 8; i++) word = word << 8 | bytes[i];
  return word;
}

static uint64_t reversed(uint64_t x) {
  x = (x >> 1 & 0x5555555555555555u) | (x & 0x5555555555555555u) << 1;
  x = (x >> 2 & 0x3333333333333333u) | (x & 0x3333333333333333u) << 2;
  x = (x >> 4 & 0x0f0f0f0f0f0f0f0fu) | (x & 0x0f0f0f0f0f0f0f0fu) << 4;
  x = (x >> 8 & 0x00ff00ff00ff00ffu) | (x & 0x00ff00ff00ff00ffu) << 8;
  x = (x >> 16 & 0x0000ffff0000ffffu) | (x & 0x0000ffff0000ffffu) << 16;
  return x >> 32 | x << 32;
}

/* The low 64 bits of the product without carries: of every fourth bit, three zeros between take up what is carried. */
__attribute__((noinline)) static uint64_t low_product(uint64_t x, uint64_t y) {
  const uint64_t first = 0x1111111111111111u, second = first << 1, third = first << 2, fourth = first << 3;
  const uint64_t a = x & first, b = x & second, c = x & third, d = x & fourth;
  const uint64_t e = y & first, f = y & second, g = y & third, h = y & fourth;
  return ((a * e ^ b * h ^ c * g ^ d * f) & first) | ((a * f ^ b * e ^ c * h ^ d * g) & second) |
         ((a * g ^ b * f ^ c * e ^ d * h) & third) | ((a * h ^ b * g ^ c * f ^ d * e) & fourth);
}

static Element product(uint64_t x, uint64_t y) {
  return (Element){reversed(low_product(reversed(x), reversed(y))) >> 1, low_product(x, y)};
}

/* In GF(2^128) with the bits of SP 800-38D, whose first is the coefficient of 1: the product of the reversed numbers,
   shifted by one bit. */
static Element field_product(Element a, Element b) {
  const Element high = product(a.high, b.high), low = product(a.low, b.low);
  Element middle = product(a.high ^ a.low, b.high ^ b.low);
  middle.high ^= high.high ^ low.high;
  middle.low ^= high.low ^ low.low;
  uint64_t p[4] = {low.low, low.high ^ middle.low, high.low ^ middle.high, high.high};
  for (int i = 3; i > 0; i--) p[i] = p[i] << 1 | p[i - 1] >> 63;
  p[0] <<= 1;
  for (int i = 0; i < 2; i++) { /* x^128 = x^7 + x^2 + x + 1 */
    p[i + 1] ^= p[i] << 63 ^ p[i] << 62 ^ p[i] << 57;
    p[i + 2] ^= p[i] ^ p[i] >> 1 ^ p[i] >> 2 ^ p[i] >> 7;
  }
  return (Element){p[3], p[2]};
}

static Element absorb(Element sum, Element key, const uint8_t *data, size_t bytes) {
  while (bytes > 0) {
    uint8_t block[BLOCK] = {0};
    const size_t now = bytes < BLOCK ? bytes : BLOCK;
    memcpy(block, data, now);
    sum = field_product((Element){sum.high ^ big(block), sum.low ^ big(block + 8)}, key);
    data += now;
    bytes -= now;
  }
  return sum;
}

/* ------------------------------------------------------------------------------------------------------------- GCM */

/* Eight blocks of the key stream: the nonce and counters from `counter` on, encrypted. */
static void stream(const Schedule *schedule, const uint8_t *nonce, uint32_t counter, uint8_t *blocks) {
  for (int b = 0; b < BATCH; b += BLOCK, counter++) {
    memcpy(blocks + b, nonce, NONCE);
    for (int i = 0; i < 4; i++) blocks[b + NONCE + i] = (uint8_t)(counter >> (24 - 8 * i));
  }
  encrypt(schedule, blocks);
}

static int is_genuine(const Schedule *schedule, const uint8_t *nonce, const uint8_t *extra, size_t extra_bytes,
                      const uint8_t *text, size_t bytes, const uint8_t *tag) {
  uint8_t zero[BATCH] = {0}, mask[BATCH];
  encrypt(schedule, zero);
  Element key = {big(zero), big(zero + 8)};
  Element sum = absorb(absorb((Element){0, 0}, key, extra, extra_bytes), key, text, bytes);
  sum = field_product((Element){sum.high ^ (uint64_t)extra_bytes << 3, sum.low ^ (uint64_t)bytes << 3}, key);
  stream(schedule, nonce, 1, mask);
  const uint64_t wrong = (sum.high ^ big(mask) ^ big(tag)) | (sum.low ^ big(mask + 8) ^ big(tag + 8));
  tn_wipe(zero, sizeof zero);
  tn_wipe(mask, sizeof mask);
  tn_wipe(&key, sizeof key);
  return wrong == 0;
}

/* In the place of the result, because a mapped file may change between the verification and the decryption. */
int tn_decrypt(const uint8_t key[TENON_KEY_BYTES], const char *name, const uint8_t *sealed, size_t size, uint8_t *text) {
  if (size < NONCE + TAG) return 0;
  const size_t bytes = size - NONCE - TAG;
  Schedule schedule;
  uint8_t blocks[BATCH], nonce[NONCE];
  expand(key, &schedule);
  memcpy(nonce, sealed, NONCE);
  memcpy(text, sealed + NONCE, bytes);
  const int genuine =
      is_genuine(&schedule, nonce, (const uint8_t *)name, strlen(name), text, bytes, sealed + NONCE + bytes);
  for (size_t at = 0; genuine && at < bytes; at += BATCH) {
    stream(&schedule, nonce, (uint32_t)(2 + at / BLOCK), blocks);
    for (size_t i = 0; i < BATCH && at + i < bytes; i++) text[at + i] ^= blocks[i];
  }
  tn_wipe(&schedule, sizeof schedule);
  tn_wipe(blocks, sizeof blocks);
  return genuine;
}

void tn_wipe(void *memory, size_t bytes) {
  for (volatile uint8_t *at = memory; bytes > 0; bytes--) *at++ = 0;
}
