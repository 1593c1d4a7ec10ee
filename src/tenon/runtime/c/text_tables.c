#include "text_tables.h"
#include <string.h>

int tenon_text_open(TenonText *text, const void *tables, size_t size) {
  text->head = (const uint32_t *)tables;
  text->base = (const uint8_t *)tables;
  if (size < TEXT_HEAD * sizeof(uint32_t) || text->head[TEXT_MAGIC] != 0x58544e54u || text->head[TEXT_VERSION] != 4 ||
      text->head[TEXT_BYTES] != size)
    return TENON_TEXT_NO_TABLES;
  return 0;
}

const void *tenon_text_section(const TenonText *text, int number) { return text->base + text->head[number]; }

uint32_t tenon_text_point(const uint8_t *s, size_t length, size_t *bytes) {
  static const uint8_t masks[5] = {0, 0x7f, 0x1f, 0x0f, 0x07};
  static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
  size_t count = s[0] < 0x80 ? 1 : s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : s[0] < 0xf5 ? 4 : 0;
  *bytes = 1;
  if (count == 0 || count > length) return 0xfffd;
  uint32_t point = s[0] & masks[count];
  for (size_t i = 1; i < count; i++) {
    if ((s[i] & 0xc0) != 0x80) return 0xfffd;
    point = point << 6 | (s[i] & 0x3f);
  }
  if (point < least[count] || point >= TEXT_CODE_POINTS || (point >= 0xd800 && point < 0xe000)) return 0xfffd;
  *bytes = count;
  return point;
}

uint32_t tenon_text_class(const TenonText *text, uint32_t point) {
  const uint16_t *pages = (const uint16_t *)tenon_text_section(text, TEXT_CLASS_PAGES);
  const uint8_t *rows = (const uint8_t *)tenon_text_section(text, TEXT_CLASS_ROWS);
  return rows[(size_t)pages[point >> 7] * 128 + (point & 127)];
}

uint32_t tenon_text_mapped(const TenonText *text, uint32_t point) {
  const uint16_t *pages = (const uint16_t *)tenon_text_section(text, TEXT_MAP_PAGES);
  const uint16_t *rows = (const uint16_t *)tenon_text_section(text, TEXT_MAP_ROWS);
  return rows[(size_t)pages[point >> 7] * 128 + (point & 127)];
}

uint32_t tenon_text_hash(uint32_t seed, const uint8_t *s, size_t length) {
  for (size_t i = 0; i < length; i++) seed = (seed ^ s[i]) * 16777619u;
  return seed;
}

int32_t tenon_text_token(const TenonText *text, uint32_t hash, const uint8_t *first, size_t first_length,
                         const uint8_t *second, size_t second_length) {
  const uint32_t *slots = (const uint32_t *)tenon_text_section(text, TEXT_NAME_SLOTS);
  const uint32_t *starts = (const uint32_t *)tenon_text_section(text, TEXT_NAME_STARTS);
  const uint8_t *names = (const uint8_t *)tenon_text_section(text, TEXT_NAMES);
  uint32_t mask = text->head[TEXT_NAME_MASK];
  for (uint32_t at = hash & mask; slots[at] != 0; at = (at + 1) & mask) {
    uint32_t token = slots[at] - 1;
    const uint8_t *name = names + starts[token];
    if (starts[token + 1] - starts[token] == first_length + second_length && memcmp(name, first, first_length) == 0 &&
        memcmp(name + first_length, second, second_length) == 0)
      return (int32_t)token;
  }
  return TEXT_NONE;
}

int32_t tenon_text_pair(const TenonText *text, uint32_t left, uint32_t right, uint32_t *result) {
  const uint32_t *slots = (const uint32_t *)tenon_text_section(text, TEXT_PAIR_SLOTS);
  const TextPair *pairs = (const TextPair *)tenon_text_section(text, TEXT_PAIRS);
  uint32_t mask = text->head[TEXT_PAIR_MASK], hash = (left * 0x9e3779b1u) ^ (right * 0x85ebca77u);
  for (uint32_t at = (hash ^ hash >> 15) & mask; slots[at] != 0; at = (at + 1) & mask) {
    const TextPair *pair = &pairs[slots[at] - 1];
    if (pair->left == left && pair->right == right) {
      *result = pair->result;
      return (int32_t)(slots[at] - 1);
    }
  }
  return TEXT_NONE;
}

const char *tenon_text_piece(const TenonText *text, uint32_t token, size_t *length) {
  const uint32_t *starts = (const uint32_t *)tenon_text_section(text, TEXT_PIECE_STARTS);
  const uint32_t *special = (const uint32_t *)tenon_text_section(text, TEXT_SPECIAL_BITS);
  *length = 0;
  if (token >= text->head[TEXT_VOCABULARY] || special[token >> 5] >> (token & 31) & 1) return "";
  *length = starts[token + 1] - starts[token];
  return (const char *)tenon_text_section(text, TEXT_PIECES) + starts[token];
}

int tenon_text_ends(const TenonText *text, uint32_t token) {
  const uint32_t *ends = (const uint32_t *)tenon_text_section(text, TEXT_END_TOKENS);
  for (uint32_t i = 0; i < text->head[TEXT_ENDS]; i++)
    if (ends[i] == token) return 1;
  return 0;
}
