#include "text_form.h"

/* The characters that a character consists of (none: of itself), and its combining class. */
typedef struct {
  uint32_t start, count, order;
} FormEntry;

/* Syllables of Hangul are a leading consonant, a vowel and perhaps a trailing consonant. */
enum {
  HANGUL = 0xac00, LEADING = 0x1100, VOWEL = 0x1161, TRAILING = 0x11a7,
  VOWELS = 21, TRAILINGS = 28, SYLLABLES = 19 * VOWELS * TRAILINGS
};

static const FormEntry *entry_of(const TenonText *text, uint32_t point) {
  const uint16_t *pages = (const uint16_t *)tenon_text_section(text, TEXT_FORM_PAGES);
  const uint16_t *numbers = (const uint16_t *)tenon_text_section(text, TEXT_FORM_NUMBERS);
  return (const FormEntry *)tenon_text_section(text, TEXT_FORM_ENTRIES) + numbers[(size_t)pages[point >> 7] * 128 + (point & 127)];
}

static size_t decomposed(const TenonText *text, uint32_t point, uint32_t *to) {
  const FormEntry *entry = entry_of(text, point);
  const uint32_t *points = (const uint32_t *)tenon_text_section(text, TEXT_FORM_POINTS);
  if (point >= HANGUL && point < HANGUL + SYLLABLES) {
    uint32_t at = point - HANGUL, last = at % TRAILINGS;
    to[0] = LEADING + at / (VOWELS * TRAILINGS);
    to[1] = VOWEL + at / TRAILINGS % VOWELS;
    to[2] = TRAILING + last;
    return last > 0 ? 3 : 2;
  }
  to[0] = point;
  for (uint32_t i = 0; i < entry->count; i++) to[i] = points[entry->start + i];
  return entry->count > 0 ? entry->count : 1;
}

/* Sort marks behind each other by their combining classes. */
static void put_in_order(const TenonText *text, uint32_t *points, size_t count) {
  for (size_t i = 1; i < count; i++) {
    uint32_t point = points[i], order = entry_of(text, point)->order;
    size_t at = i;
    if (order == 0) continue;
    for (; at > 0 && entry_of(text, points[at - 1])->order > order; at--) points[at] = points[at - 1];
    points[at] = point;
  }
}

/* The character that two become; 0 if they stay two. */
static uint32_t composed(const TenonText *text, uint32_t first, uint32_t second) {
  const TextPair *pairs = (const TextPair *)tenon_text_section(text, TEXT_FORM_PAIRS);
  size_t low = 0, high = text->head[TEXT_FORM_PAIR_COUNT];
  if (first - LEADING < 19 && second - VOWEL < VOWELS)
    return HANGUL + ((first - LEADING) * VOWELS + second - VOWEL) * TRAILINGS;
  if (first - HANGUL < SYLLABLES && (first - HANGUL) % TRAILINGS == 0 && second > TRAILING && second < TRAILING + TRAILINGS)
    return first + second - TRAILING;
  while (low < high) {
    size_t middle = (low + high) / 2;
    const TextPair *pair = &pairs[middle];
    if (pair->left == first && pair->right == second) return pair->result;
    if (pair->left < first || (pair->left == first && pair->right < second)) low = middle + 1;
    else high = middle;
  }
  return 0;
}

static size_t compose(const TenonText *text, uint32_t *points, size_t count) {
  size_t kept = 0, starter = 0;
  uint32_t last = 0; /* the class of the mark before; marks of it and of lower ones do not reach the starter */
  int begun = 0;
  for (size_t i = 0; i < count; i++) {
    uint32_t order = entry_of(text, points[i])->order, result = 0;
    if (begun && (kept == starter + 1 || last < order)) result = composed(text, points[starter], points[i]);
    if (result != 0) {
      points[starter] = result;
      continue;
    }
    if (order == 0) {
      starter = kept;
      begun = 1;
    }
    last = order;
    points[kept++] = points[i];
  }
  return kept;
}

static size_t written(uint32_t point, uint8_t *to) {
  if (point < 0x80) return to[0] = (uint8_t)point, 1;
  size_t count = point < 0x800 ? 2 : point < 0x10000 ? 3 : 4;
  for (size_t i = count; i-- > 1; point >>= 6) to[i] = (uint8_t)(0x80 | (point & 0x3f));
  to[0] = (uint8_t)(0xf00 >> count | point);
  return count;
}

size_t tenon_text_form(const TenonText *text, const uint8_t *from, size_t length, uint8_t *to, void *work) {
  uint32_t *points = (uint32_t *)work;
  size_t count = 0, bytes = 0;
  for (size_t at = 0, size; at < length; at += size)
    count += decomposed(text, tenon_text_point(from + at, length - at, &size), points + count);
  put_in_order(text, points, count);
  if (text->head[TEXT_FORM_PAIR_COUNT] > 0) count = compose(text, points, count);
  for (size_t i = 0; i < count; i++) bytes += written(points[i], to + bytes);
  return bytes;
}
