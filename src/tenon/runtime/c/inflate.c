/* Decompression of zlib streams (RFC 1950, 1951).  All reads are bounds-checked. */

#include "inflate.h"

#include <stdint.h>
#include <string.h>

enum { LONGEST_CODE = 15, LITERALS = 288, DISTANCES = 30, END_OF_BLOCK = 256, LONGEST_ALPHABET = 320 };

typedef struct {
  const unsigned char *at, *end;
  unsigned char *to;
  size_t size, made;
  uint32_t bits;
  int bit_count, failed;
} Inflater;

/* A canonical Huffman code: how many codes of each length, and the symbols in the order of their codes. */
typedef struct {
  uint16_t count[LONGEST_CODE + 1], symbols[LONGEST_ALPHABET];
} InflateCode;

static uint32_t inflate_bits(Inflater *s, int count) {
  while (s->bit_count < count) {
    if (s->at == s->end) {
      s->failed = 1;
      return 0;
    }
    s->bits |= (uint32_t)*s->at++ << s->bit_count;
    s->bit_count += 8;
  }
  const uint32_t value = s->bits & ((1u << count) - 1);
  s->bits >>= count;
  s->bit_count -= count;
  return value;
}

/* Returns 0 for lengths that form no code; incomplete codes of one symbol are allowed. */
static int inflate_make(InflateCode *code, const uint8_t *lengths, int count) {
  uint16_t next[LONGEST_CODE + 2] = {0};
  memset(code->count, 0, sizeof code->count);
  for (int i = 0; i < count; i++) code->count[lengths[i]]++;
  code->count[0] = 0;
  int left = 1;
  for (int length = 1; length <= LONGEST_CODE; length++) {
    left = 2 * left - code->count[length];
    if (left < 0) return 0;
    next[length + 1] = (uint16_t)(next[length] + code->count[length]);
  }
  for (int i = 0; i < count; i++)
    if (lengths[i]) code->symbols[next[lengths[i]]++] = (uint16_t)i;
  return 1;
}

static int inflate_symbol(Inflater *s, const InflateCode *code) {
  int value = 0, first = 0, index = 0;
  for (int length = 1; length <= LONGEST_CODE; length++) {
    value |= (int)inflate_bits(s, 1);
    if (s->failed) return 0;
    const int count = code->count[length];
    if (value - first < count) return code->symbols[index + value - first];
    index += count;
    first = (first + count) << 1;
    value <<= 1;
  }
  s->failed = 1;
  return 0;
}

static void inflate_stored(Inflater *s) {
  s->bits = 0;
  s->bit_count = 0;
  if (s->end - s->at < 4) {
    s->failed = 1;
    return;
  }
  const size_t length = s->at[0] | (size_t)s->at[1] << 8, check = s->at[2] | (size_t)s->at[3] << 8;
  s->at += 4;
  if (length != (check ^ 0xffff) || length > (size_t)(s->end - s->at) || length > s->size - s->made) {
    s->failed = 1;
    return;
  }
  memcpy(s->to + s->made, s->at, length);
  s->at += length;
  s->made += length;
}

static void inflate_copy(Inflater *s, const InflateCode *distances, int symbol) {
  static const uint16_t length_base[] = {3,  4,  5,  6,  7,  8,  9,  10, 11,  13,  15,  17,  19,  23, 27,
                                         31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258};
  static const uint8_t length_bits[] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0};
  static const uint16_t distance_base[] = {1,   2,   3,   4,   5,   7,    9,    13,   17,   25,   33,   49,   65,    97,    129,
                                           193, 257, 385, 513, 769, 1025, 1537, 2049, 3073, 4097, 6145, 8193, 12289, 16385, 24577};
  symbol -= END_OF_BLOCK + 1;
  if (symbol >= (int)sizeof length_bits) {
    s->failed = 1;
    return;
  }
  const size_t length = length_base[symbol] + inflate_bits(s, length_bits[symbol]);
  const int far = inflate_symbol(s, distances);
  if (s->failed || far >= DISTANCES) {
    s->failed = 1;
    return;
  }
  const size_t distance = distance_base[far] + inflate_bits(s, far < 2 ? 0 : far / 2 - 1);
  if (s->failed || distance > s->made || length > s->size - s->made) {
    s->failed = 1;
    return;
  }
  for (size_t i = 0; i < length; i++, s->made++) s->to[s->made] = s->to[s->made - distance];
}

static void inflate_block(Inflater *s, const InflateCode *literals, const InflateCode *distances) {
  while (!s->failed) {
    const int symbol = inflate_symbol(s, literals);
    if (s->failed || symbol == END_OF_BLOCK) return;
    if (symbol > END_OF_BLOCK) inflate_copy(s, distances, symbol);
    else if (s->made < s->size) s->to[s->made++] = (unsigned char)symbol;
    else s->failed = 1;
  }
}

static void inflate_fixed_codes(InflateCode *literals, InflateCode *distances) {
  uint8_t lengths[LITERALS];
  for (int i = 0; i < LITERALS; i++) lengths[i] = i < 144 ? 8 : i < 256 ? 9 : i < 280 ? 7 : 8;
  inflate_make(literals, lengths, LITERALS);
  memset(lengths, 5, DISTANCES);
  inflate_make(distances, lengths, DISTANCES);
}

static void inflate_read_codes(Inflater *s, InflateCode *literals, InflateCode *distances) {
  static const uint8_t order[] = {16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15};
  uint8_t lengths[LONGEST_ALPHABET + 138] = {0};
  const int many = (int)inflate_bits(s, 5) + 257, far = (int)inflate_bits(s, 5) + 1, few = (int)inflate_bits(s, 4) + 4;
  for (int i = 0; i < few; i++) lengths[order[i]] = (uint8_t)inflate_bits(s, 3);
  if (s->failed || many > 286 || far > DISTANCES || !inflate_make(literals, lengths, 19)) {
    s->failed = 1;
    return;
  }
  memset(lengths, 0, sizeof lengths);
  const size_t all = (size_t)(many + far);
  for (size_t i = 0; i < all && !s->failed;) {
    const int symbol = inflate_symbol(s, literals);
    if (symbol < 16) {
      lengths[i++] = (uint8_t)symbol;
      continue;
    }
    const size_t repeat = symbol == 16   ? 3 + inflate_bits(s, 2)
                          : symbol == 17 ? 3 + inflate_bits(s, 3)
                                         : 11 + inflate_bits(s, 7);
    if (symbol == 16 && i == 0) s->failed = 1;
    const uint8_t length = symbol == 16 && i > 0 ? lengths[i - 1] : 0;
    memset(lengths + i, length, repeat);
    i += repeat;
    if (i > all) s->failed = 1;
  }
  if (s->failed || !lengths[END_OF_BLOCK] || !inflate_make(literals, lengths, many) ||
      !inflate_make(distances, lengths + many, far))
    s->failed = 1;
}

int tenon_inflate(const unsigned char *data, size_t count, unsigned char *to, size_t size) {
  if (count < 2 || (data[0] & 15) != 8 || (data[0] << 8 | data[1]) % 31 != 0 || data[1] & 32) return 0;
  Inflater s = {data + 2, data + count, to, size, 0, 0, 0, 0};
  InflateCode literals, distances;
  for (int last = 0; !last && !s.failed;) {
    last = (int)inflate_bits(&s, 1);
    const int kind = (int)inflate_bits(&s, 2);
    if (s.failed || kind == 3) return 0;
    if (kind == 0) {
      inflate_stored(&s);
      continue;
    }
    if (kind == 1) inflate_fixed_codes(&literals, &distances);
    else inflate_read_codes(&s, &literals, &distances);
    inflate_block(&s, &literals, &distances);
  }
  return !s.failed && s.made == size;
}
