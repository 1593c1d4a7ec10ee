#include "text_encode.h"
#include "text_form.h"
#include "text_words.h"
#include <string.h>

enum { STEP_PREPEND = 1, STEP_REPLACE, STEP_MAP, STEP_PREPEND_ONCE, STEP_PREPEND_FIRST, STEP_FORM };
enum { SPLIT_ISOLATED, SPLIT_REMOVED, SPLIT_WITH_NEXT };
enum { STRIP_LEFT = 1, STRIP_RIGHT = 2 };
enum { ENTRY_ACCEPT = 0x8000, ENTRY_DEAD = 0x7fff };

typedef struct {
  uint32_t kind, from, from_length, to, to_length;
} Step;

typedef struct {
  uint32_t table, behaviour;
} Split;

typedef struct {
  uint32_t token, flags;
} Special;

typedef struct {
  const TenonText *text;
  TextTokens to;
  uint8_t *texts[2]; /* a text before and after a step */
  void *words;
} Encoding;

static size_t room_of_text(const TenonText *text, size_t length) {
  return (length * text->head[TEXT_GROWTH] + text->head[TEXT_ADDED_BYTES] + 15) / 8 * 8;
}

size_t tenon_text_work(const TenonText *text, size_t length) {
  size_t room = room_of_text(text, length);
  return 2 * room + room * TEXT_WORK_OF_BYTE + TEXT_WORK_OF_WORD;
}

/* --------------------------------------------------------------------------------------------------- words */

/* The end of the match of an automaton that begins at `at`; 0 if there is none. */
static size_t match(const TenonText *text, const uint16_t *table, const uint8_t *s, size_t length, size_t at) {
  uint32_t classes = text->head[TEXT_CLASSES], state = 0;
  size_t end = 0, size;
  for (;;) {
    uint32_t kind = classes;
    if (at < length) kind = tenon_text_class(text, tenon_text_point(s + at, length - at, &size));
    uint32_t entry = table[state * (classes + 1) + kind];
    if (entry & ENTRY_ACCEPT) end = at;
    state = entry & ENTRY_DEAD;
    if (state == ENTRY_DEAD || at >= length) return end;
    at += size;
  }
}

/* Add the tokens of a text that is split by the rules from `rule` on. */
static void split(Encoding *e, uint32_t rule, const uint8_t *s, size_t length) {
  const TenonText *text = e->text;
  if (rule == text->head[TEXT_SPLITS]) {
    tenon_text_word(text, s, length, &e->to, e->words);
    return;
  }
  const Split *how = (const Split *)tenon_text_section(text, TEXT_SPLIT_ROWS) + rule;
  const uint16_t *table = (const uint16_t *)(const void *)(text->base + how->table);
  size_t begin = 0;
  for (size_t at = 0, size; at < length;) {
    size_t end = match(text, table, s, length, at);
    if (end <= at) {
      tenon_text_point(s + at, length - at, &size);
      at += size;
      continue;
    }
    if (begin < at) split(e, rule + 1, s + begin, at - begin);
    begin = how->behaviour == SPLIT_WITH_NEXT ? at : end;
    if (how->behaviour == SPLIT_ISOLATED) split(e, rule + 1, s + at, end - at);
    at = end;
  }
  if (begin < length) split(e, rule + 1, s + begin, length - begin);
}

/* ------------------------------------------------------------------------------------------- normalisation */

static size_t prepended(const uint8_t *sign, size_t size, const uint8_t *from, size_t length, uint8_t *to) {
  memcpy(to, sign, size);
  memcpy(to + size, from, length);
  return size + length;
}

static size_t replaced(const uint8_t *base, const Step *step, const uint8_t *from, size_t length, uint8_t *to) {
  size_t count = 0;
  for (size_t at = 0; at < length;) {
    if (length - at >= step->from_length && memcmp(from + at, base + step->from, step->from_length) == 0) {
      memcpy(to + count, base + step->to, step->to_length);
      count += step->to_length;
      at += step->from_length;
    } else {
      to[count++] = from[at++];
    }
  }
  return count;
}

static size_t mapped(const TenonText *text, const uint8_t *from, size_t length, uint8_t *to) {
  const uint32_t *starts = (const uint32_t *)tenon_text_section(text, TEXT_MAP_STARTS);
  const uint8_t *texts = (const uint8_t *)tenon_text_section(text, TEXT_MAP_TEXTS);
  size_t count = 0;
  for (size_t at = 0, size; at < length; at += size) {
    uint32_t number = tenon_text_mapped(text, tenon_text_point(from + at, length - at, &size));
    int spaced = number == MAP_SPACED, stays = spaced || number == MAP_STAYS;
    size_t other = stays ? size : starts[number] - starts[number - 1];
    if (spaced) to[count++] = ' ';
    memcpy(to + count, stays ? from + at : texts + starts[number - 1], other);
    count += other;
    if (spaced) to[count++] = ' ';
  }
  return count;
}

static int begins_with(const uint8_t *s, size_t length, const uint8_t *sign, size_t size) {
  return length >= size && memcmp(s, sign, size) == 0;
}

static size_t stepped(Encoding *e, const Step *step, int first, const uint8_t *from, size_t length, uint8_t *to) {
  const uint8_t *base = e->text->base, *sign = base + step->from;
  int begins = begins_with(from, length, sign, step->from_length);
  switch (step->kind) {
    case STEP_REPLACE: return replaced(base, step, from, length, to);
    case STEP_MAP: return mapped(e->text, from, length, to);
    case STEP_FORM: return tenon_text_form(e->text, from, length, to, e->words);
    case STEP_PREPEND: return prepended(sign, step->from_length, from, length, to);
    case STEP_PREPEND_ONCE: return prepended(sign, begins ? 0 : step->from_length, from, length, to);
    default: return prepended(sign, begins || !first ? 0 : step->from_length, from, length, to);
  }
}

/* Add the tokens of a part of the text without special tokens; `first`: the text begins with it. */
static void segment(Encoding *e, const uint8_t *s, size_t length, int first) {
  const Step *steps = (const Step *)tenon_text_section(e->text, TEXT_STEP_ROWS);
  if (length == 0) return;
  for (uint32_t i = 0; i < e->text->head[TEXT_STEPS]; i++) {
    uint8_t *to = e->texts[i & 1];
    length = stepped(e, &steps[i], first, s, length, to);
    s = to;
  }
  split(e, 0, s, length);
}

/* ------------------------------------------------------------------------------------------ special tokens */

/* The longest special token that stands at `at`; NULL if there is none. */
static const Special *special_at(const TenonText *text, const uint8_t *s, size_t length, size_t at, size_t *size) {
  const Special *rows = (const Special *)tenon_text_section(text, TEXT_SPECIAL_ROWS);
  const uint32_t *starts = (const uint32_t *)tenon_text_section(text, TEXT_NAME_STARTS);
  const uint8_t *names = (const uint8_t *)tenon_text_section(text, TEXT_NAMES);
  for (uint32_t i = 0; i < text->head[TEXT_SPECIAL_COUNT]; i++) {
    const uint8_t *name = names + starts[rows[i].token];
    *size = starts[rows[i].token + 1] - starts[rows[i].token];
    if (*name == s[at] && *size <= length - at && memcmp(name, s + at, *size) == 0) return &rows[i];
  }
  return NULL;
}

static int is_space(const uint8_t *s, size_t length, size_t *size) {
  uint32_t point = tenon_text_point(s, length, size);
  return (point >= 9 && point <= 13) || point == 32 || point == 0x85 || point == 0xa0 || point == 0x1680 ||
         (point >= 0x2000 && point <= 0x200a) || point == 0x2028 || point == 0x2029 || point == 0x202f ||
         point == 0x205f || point == 0x3000;
}

static size_t without_spaces_behind(const uint8_t *s, size_t begin, size_t end) {
  size_t last = begin;
  for (size_t at = begin, size; at < end; at += size)
    if (!is_space(s + at, end - at, &size)) last = at + size;
  return last;
}

static size_t behind_spaces(const uint8_t *s, size_t at, size_t end) {
  for (size_t size; at < end && is_space(s + at, end - at, &size); at += size) {
  }
  return at;
}

static void around(const TenonText *text, int count, int tokens, TextTokens *to) {
  const uint32_t *rows = (const uint32_t *)tenon_text_section(text, tokens);
  for (uint32_t i = 0; i < text->head[count]; i++) tenon_text_add(to, rows[i]);
}

long tenon_text_encode(const TenonText *text, const char *string, size_t length, int special, uint32_t *tokens,
                       size_t room, void *work) {
  const uint8_t *s = (const uint8_t *)string;
  uint8_t *memory = (uint8_t *)work;
  size_t size_of_text = room_of_text(text, length), begin = 0;
  Encoding e = {text, {tokens, room, 0}, {memory, memory + size_of_text}, memory + 2 * size_of_text};
  if (special) around(text, TEXT_FIRST, TEXT_FIRST_TOKENS, &e.to);
  for (size_t at = 0, size; at < length;) {
    const Special *token = special_at(text, s, length, at, &size);
    if (token == NULL) {
      at++;
      continue;
    }
    segment(&e, s + begin, (token->flags & STRIP_LEFT ? without_spaces_behind(s, begin, at) : at) - begin, begin == 0);
    tenon_text_add(&e.to, token->token);
    at += size;
    if (token->flags & STRIP_RIGHT) at = behind_spaces(s, at, length);
    begin = at;
  }
  segment(&e, s + begin, length - begin, begin == 0);
  if (special) around(text, TEXT_LAST, TEXT_LAST_TOKENS, &e.to);
  return e.to.count > room ? TENON_TEXT_NO_ROOM : (long)e.to.count;
}
