/* Decompression of LZMA, as the file LZMA-specification.txt of the LZMA SDK (I. Pavlov, public domain) defines it: a
   range coder whose probabilities adapt, over literals, matches and the four last distances.

   The whole result is in memory, and is the dictionary.  Every read and write is checked, so that damaged data cannot
   leave a buffer. */

#include "lzma.h"

#include <stdlib.h>
#include <string.h>

enum {
  STATES = 12,
  POSITIONS = 16, /* at most 2^pb */
  LENGTH_STATES = 4,
  TREE = 64,
  ALIGN_BITS = 4,
  FULL_DISTANCES = 128,
  LITERAL = 0x300,
  HALF = 1 << 10,
  MIN_MATCH = 2
};

typedef uint16_t Probability;

typedef struct {
  Probability choice[2], low[POSITIONS][8], middle[POSITIONS][8], high[256];
} LengthCoder;

typedef struct {
  Probability is_match[STATES][POSITIONS], is_repeat[STATES], is_repeat0[STATES], is_repeat1[STATES], is_repeat2[STATES];
  Probability is_long[STATES][POSITIONS], slot[LENGTH_STATES][TREE], special[FULL_DISTANCES], align[1 << ALIGN_BITS];
  LengthCoder match, repeat;
  Probability literal[]; /* LITERAL for each of 2^(lc + lp) contexts */
} Model;

typedef struct {
  const uint8_t *at, *end;
  uint32_t range, code;
  int is_short; /* the data ended too early */
} Range;

static void normalise(Range *range) {
  if (range->range >= 1u << 24) return;
  range->range <<= 8;
  range->code <<= 8;
  if (range->at < range->end) range->code |= *range->at++;
  else range->is_short = 1;
}

static unsigned bit(Range *range, Probability *probability) {
  const uint32_t bound = (range->range >> 11) * *probability;
  const unsigned value = range->code >= bound;
  if (value) {
    range->range -= bound;
    range->code -= bound;
    *probability = (Probability)(*probability - (*probability >> 5));
  } else {
    range->range = bound;
    *probability = (Probability)(*probability + ((2048 - *probability) >> 5));
  }
  normalise(range);
  return value;
}

static uint32_t direct_bits(Range *range, int count) {
  uint32_t value = 0;
  while (count-- > 0) {
    range->range >>= 1;
    const unsigned one = range->code >= range->range;
    if (one) range->code -= range->range;
    normalise(range);
    value = value << 1 | one;
  }
  return value;
}

static unsigned tree(Range *range, Probability *probabilities, int bits) {
  unsigned node = 1;
  for (int i = 0; i < bits; i++) node = node << 1 | bit(range, probabilities + node);
  return node - (1u << bits);
}

/* The lowest bit first; `probabilities` has the root at 1. */
static unsigned reverse_tree(Range *range, Probability *probabilities, int bits) {
  unsigned node = 1, value = 0;
  for (int i = 0; i < bits; i++) {
    const unsigned one = bit(range, probabilities + node);
    node = node << 1 | one;
    value |= one << i;
  }
  return value;
}

static unsigned length_of(Range *range, LengthCoder *coder, unsigned position) {
  if (!bit(range, &coder->choice[0])) return tree(range, coder->low[position], 3);
  if (!bit(range, &coder->choice[1])) return 8 + tree(range, coder->middle[position], 3);
  return 16 + tree(range, coder->high, 8);
}

static uint32_t distance_of(Range *range, Model *model, unsigned length) {
  const unsigned state = length < LENGTH_STATES ? length : LENGTH_STATES - 1, slot = tree(range, model->slot[state], 6);
  if (slot < 4) return slot;
  const int bits = (int)(slot >> 1) - 1;
  uint32_t distance = (2 | (slot & 1)) << bits;
  if (slot < 14) return distance + reverse_tree(range, model->special + distance - slot, bits);
  distance += direct_bits(range, bits - ALIGN_BITS) << ALIGN_BITS;
  return distance + reverse_tree(range, model->align, ALIGN_BITS);
}

/* After a match, the byte at the last distance says which probabilities are used. */
static uint8_t literal_of(Range *range, Probability *probabilities, int after_match, unsigned matched) {
  unsigned symbol = 1;
  while (after_match && symbol < 0x100) {
    const unsigned expected = matched >> 7 & 1, one = bit(range, probabilities + ((1 + expected) << 8) + symbol);
    matched <<= 1;
    symbol = symbol << 1 | one;
    after_match = expected == one;
  }
  while (symbol < 0x100) symbol = symbol << 1 | bit(range, probabilities + symbol);
  return (uint8_t)symbol;
}

typedef struct {
  uint8_t *data;
  size_t at, size;
} Result;

static unsigned after_literal(unsigned state) { return state < 4 ? 0 : state < 10 ? state - 3 : state - 6; }

/* First comes which of the last distances a repeated match has.  Returns whether one byte at the last is all. */
static int repeated(Range *range, Model *model, unsigned state, unsigned position, uint32_t *last) {
  uint32_t distance;
  if (!bit(range, &model->is_repeat0[state])) return !bit(range, &model->is_long[state][position]);
  if (!bit(range, &model->is_repeat1[state])) {
    distance = last[1];
  } else {
    const int third = !bit(range, &model->is_repeat2[state]);
    distance = last[third ? 2 : 3];
    if (!third) last[3] = last[2];
    last[2] = last[1];
  }
  last[1] = last[0];
  last[0] = distance;
  return 0;
}

static int copy(Result *result, uint32_t distance, size_t length) {
  if (distance >= result->at || length > result->size - result->at) return 0;
  for (uint8_t *to = result->data + result->at, *end = to + length; to < end; to++) *to = to[-(ptrdiff_t)distance - 1];
  result->at += length;
  return 1;
}

static int decode(Model *model, Range *range, Result *result, int lc, int lp, int pb) {
  unsigned state = 0;
  uint32_t last[4] = {0};
  while (result->at < result->size && !range->is_short) {
    const unsigned position = (unsigned)result->at & ((1u << pb) - 1);
    if (!bit(range, &model->is_match[state][position])) {
      const unsigned before = result->at > 0 ? result->data[result->at - 1] : 0;
      const unsigned context = (((unsigned)result->at & ((1u << lp) - 1)) << lc) + (before >> (8 - lc));
      const int after_match = state >= 7;
      if (after_match && last[0] >= result->at) return 0;
      const unsigned matched = after_match ? result->data[result->at - last[0] - 1] : 0;
      result->data[result->at++] = literal_of(range, model->literal + LITERAL * (size_t)context, after_match, matched);
      state = after_literal(state);
      continue;
    }
    size_t length;
    if (bit(range, &model->is_repeat[state])) {
      if (repeated(range, model, state, position, last)) {
        state = state < 7 ? 9 : 11;
        if (!copy(result, last[0], 1)) return 0;
        continue;
      }
      length = length_of(range, &model->repeat, position);
      state = state < 7 ? 8 : 11;
    } else {
      length = length_of(range, &model->match, position);
      memmove(last + 1, last, 3 * sizeof *last);
      last[0] = distance_of(range, model, (unsigned)length);
      state = state < 7 ? 7 : 10;
    }
    if (!copy(result, last[0], length + MIN_MATCH)) return 0; /* the end mark's distance is too large, too */
  }
  return result->at == result->size && !range->is_short;
}

int tn_lzma_decompress(const uint8_t *data, size_t bytes, uint8_t *result, size_t result_bytes) {
  enum { HEADER = 13, START = 5 };
  if (bytes < HEADER + START || data[0] >= 9 * 5 * 5 || data[HEADER] != 0) return 0;
  const int lc = data[0] % 9, lp = data[0] / 9 % 5, pb = data[0] / 45;
  const size_t count = (sizeof(Model) / sizeof(Probability)) + ((size_t)LITERAL << (lc + lp));
  Model *model = malloc(count * sizeof(Probability));
  if (model == NULL) return -1;
  for (size_t i = 0; i < count; i++) ((Probability *)model)[i] = HALF;
  Range range = {data + HEADER + START, data + bytes, 0xffffffffu, 0, 0};
  for (int i = 1; i < START; i++) range.code = range.code << 8 | data[HEADER + i];
  Result to = {result, 0, result_bytes};
  const int whole = decode(model, &range, &to, lc, lp, pb);
  free(model);
  return whole;
}
