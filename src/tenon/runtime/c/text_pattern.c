#include "text_rules.h"
#include <string.h>

/* Regular expressions of JSON schemas as expressions in GBNF, written while they are read.  They match in JSON: a quote, a
   backslash and control characters stand there as escapes. */

enum { PATTERN_RANGES = 96, PATTERN_DEEPEST = 24, PATTERN_LAST = SCHEMA_STRING_END - 1 };

/* The place of an expression's end: within the text; an end of the text; anywhere in it, so that more may be there. */
enum { PATTERN_INSIDE, PATTERN_AT_END, PATTERN_OPEN };

typedef struct {
  uint32_t low, high;
} PatternRange;

typedef struct {
  PatternRange ranges[PATTERN_RANGES];
  uint32_t count;
} PatternSet;

/* The fewest and the most characters that an expression matches; `most` below 0: any number. */
typedef struct {
  int64_t least, most;
} PatternLength;

typedef struct {
  Schema *s;
  size_t at, start;
  PatternLength limits;
  int depth, is_limited; /* whether a repetition was cut to the limits */
} Pattern;

static const PatternLength pattern_nothing = {0, 0};

static void pattern_refuse(Pattern *p, const char *mistake) { tenon_text_refuse(p->s, p->start, mistake); }

static uint32_t pattern_peek(const Pattern *p) {
  size_t at = p->at;
  return tenon_text_character(p->s, &at);
}

static uint32_t pattern_next(Pattern *p) {
  return pattern_peek(p) == SCHEMA_STRING_END ? SCHEMA_STRING_END : tenon_text_character(p->s, &p->at);
}

/* Skip a character if it is the next one. */
static int pattern_skip(Pattern *p, uint32_t c) {
  if (pattern_peek(p) != c) return 0;
  pattern_next(p);
  return 1;
}

/* Whether a backslash and a sign come next. */
static int pattern_is_escape(const Pattern *p, uint32_t sign) {
  Pattern ahead = *p;
  return pattern_next(&ahead) == '\\' && pattern_next(&ahead) == sign;
}

static int pattern_ends(const Pattern *p) {
  const uint32_t c = pattern_peek(p);
  return c == SCHEMA_STRING_END || c == '|' || c == ')';
}

static int is_pattern_digit(uint32_t c) { return c >= '0' && c <= '9'; }

static int is_pattern_letter(uint32_t c) { return (c | 32) >= 'a' && (c | 32) <= 'z'; }

/* ---------------------------------------------------------------------------------------------------- sets of characters */

static void pattern_add(Pattern *p, PatternSet *set, uint32_t low, uint32_t high) {
  const PatternRange range = {low, high};
  if (set->count == PATTERN_RANGES) pattern_refuse(p, "a class of the pattern is too large");
  else set->ranges[set->count++] = range;
}

/* Put ranges into order, none of which touch. */
static void pattern_sort(PatternSet *set) {
  uint32_t count = 0;
  for (uint32_t i = 1; i < set->count; i++) {
    const PatternRange range = set->ranges[i];
    uint32_t at = i;
    for (; at > 0 && set->ranges[at - 1].low > range.low; at--) set->ranges[at] = set->ranges[at - 1];
    set->ranges[at] = range;
  }
  for (uint32_t i = 0; i < set->count; i++) {
    const PatternRange range = set->ranges[i];
    if (count == 0 || range.low > set->ranges[count - 1].high + 1) set->ranges[count++] = range;
    else if (range.high > set->ranges[count - 1].high) set->ranges[count - 1].high = range.high;
  }
  set->count = count;
}

static void pattern_negate(Pattern *p, PatternSet *set) {
  PatternSet others = {.count = 0};
  uint32_t from = 0;
  pattern_sort(set);
  for (uint32_t i = 0; i < set->count; i++) {
    if (set->ranges[i].low > from) pattern_add(p, &others, from, set->ranges[i].low - 1);
    from = set->ranges[i].high + 1;
  }
  if (from <= PATTERN_LAST) pattern_add(p, &others, from, PATTERN_LAST);
  *set = others;
}

static int pattern_has(const PatternSet *set, uint32_t point) {
  for (uint32_t i = 0; i < set->count; i++)
    if (point >= set->ranges[i].low && point <= set->ranges[i].high) return 1;
  return 0;
}

static void pattern_put_point(Schema *s, uint32_t point) {
  tenon_text_append(s, point < 0x100 ? "\\x" : point < 0x10000 ? "\\u" : "\\U");
  tenon_text_put_hexadecimal(s, point, point < 0x100 ? 2 : point < 0x10000 ? 4 : 8);
}

static int is_pattern_escaped(uint32_t point) { return point < ' ' || point == '"' || point == '\\' || point == 0x7f; }

/* A class of the characters that stand in JSON as they are; whether there are any. */
static int pattern_put_plain(Schema *s, const PatternSet *set) {
  static const PatternRange plain[] = {{0x20, 0x21}, {0x23, 0x5b}, {0x5d, 0x7e}, {0x80, 0xd7ff}, {0xe000, PATTERN_LAST}};
  int ways = 0;
  for (uint32_t i = 0; i < set->count; i++)
    for (int k = 0; k < 5; k++) {
      const uint32_t low = set->ranges[i].low > plain[k].low ? set->ranges[i].low : plain[k].low;
      const uint32_t high = set->ranges[i].high < plain[k].high ? set->ranges[i].high : plain[k].high;
      if (low > high) continue;
      if (ways++ == 0) tenon_text_append(s, "[");
      pattern_put_point(s, low);
      if (high > low) tenon_text_append(s, "-");
      if (high > low) pattern_put_point(s, high);
    }
  if (ways > 0) tenon_text_append(s, "]");
  return ways > 0;
}

/* The control characters of a set of which the first hexadecimal digit of the two is this one. */
static void pattern_put_row(Schema *s, const PatternSet *set, uint32_t first, int *ways) {
  int digits = 0;
  for (uint32_t digit = 0; digit < 16; digit++) {
    const uint32_t point = first << 4 | digit;
    if (!pattern_has(set, point) || point == '"' || point == '\\' || !is_pattern_escaped(point)) continue;
    if (digits++ == 0) {
      tenon_text_append(s, (*ways)++ > 0 ? " | \"u00" : "\"u00");
      tenon_text_put_hexadecimal(s, first, 1);
      tenon_text_append(s, "\" [");
    }
    tenon_text_put_hexadecimal(s, digit, 1);
    if (digit > 9) tenon_text_write(s, &"ABCDEF"[digit - 10], 1);
  }
  if (digits > 0) tenon_text_append(s, "]");
}

/* The escapes of the characters of a set. */
static void pattern_put_escapes(Schema *s, const PatternSet *set) {
  static const char signs[] = "\"\\bfnrt", meanings[] = "\"\\\b\f\n\r\t";
  int ways = 0;
  tenon_text_append(s, "\"\\\\\" (");
  for (int i = 0; signs[i] != 0; i++) {
    if (!pattern_has(set, (uint32_t)meanings[i])) continue;
    if (ways++ == 0) tenon_text_append(s, "[");
    if (i < 2) tenon_text_append(s, "\\");
    tenon_text_write(s, &signs[i], 1);
  }
  if (ways > 0) tenon_text_append(s, "]");
  pattern_put_row(s, set, 0, &ways);
  pattern_put_row(s, set, 1, &ways);
  pattern_put_row(s, set, 7, &ways);
  tenon_text_append(s, ")");
}

static void pattern_put_set(Pattern *p, PatternSet *set) {
  Schema *s = p->s;
  int has_escapes = 0;
  pattern_sort(set);
  if (set->count == 0) pattern_refuse(p, "a class of the pattern has no characters");
  for (uint32_t point = 0; point < 0x80; point++) has_escapes |= is_pattern_escaped(point) && pattern_has(set, point);
  if (set->count == 1 && set->ranges[0].low == 0 && set->ranges[0].high == PATTERN_LAST) {
    tenon_text_put_plain(s, RULE_CHAR);
    return;
  }
  if (has_escapes) tenon_text_append(s, "(");
  if (pattern_put_plain(s, set) && has_escapes) tenon_text_append(s, " | ");
  if (has_escapes) {
    pattern_put_escapes(s, set);
    tenon_text_append(s, ")");
  }
}

/* --------------------------------------------------------------------------------------------------- escapes and classes */

/* The number behind \x, \u or \U, in braces or of so many digits. */
static uint32_t pattern_hexadecimal(Pattern *p, uint32_t digits) {
  const int is_braced = pattern_skip(p, '{');
  uint32_t point = 0, count = 0;
  for (; is_braced ? pattern_peek(p) != '}' : count < digits; count++) {
    const uint32_t c = pattern_next(p), letter = c | 32;
    if (!is_pattern_digit(c) && !(letter >= 'a' && letter <= 'f')) break;
    if (point <= PATTERN_LAST) point = point << 4 | (is_pattern_digit(c) ? c - '0' : letter - 'a' + 10);
  }
  const int is_whole = count > 0 && (is_braced ? pattern_skip(p, '}') : count == digits);
  if (!is_whole || point > PATTERN_LAST || (point >= 0xd800 && point < 0xe000)) pattern_refuse(p, "the pattern has an escape of no character");
  return point;
}

/* White space of Unicode. */
static void pattern_add_spaces(Pattern *p, PatternSet *set) {
  static const uint16_t spaces[][2] = {{9, 13}, {' ', ' '}, {0x85, 0x85}, {0xa0, 0xa0}, {0x1680, 0x1680}, {0x2000, 0x200a},
                                       {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}};
  for (size_t i = 0; i < sizeof spaces / sizeof *spaces; i++) pattern_add(p, set, spaces[i][0], spaces[i][1]);
}

/* Add what an escape behind its backslash stands for; whether that is one character, which is then `*point`. */
static int pattern_escape(Pattern *p, PatternSet *set, uint32_t *point) {
  static const char signs[] = "afnrtv", meanings[] = "\a\f\n\r\t\v";
  PatternSet own = {.count = 0};
  const uint32_t c = pattern_next(p), kind = c | 32;
  if (kind == 'd' || kind == 'w' || kind == 's') {
    if (kind == 's') pattern_add_spaces(p, &own);
    else pattern_add(p, &own, '0', '9');
    if (kind == 'w') pattern_add(p, &own, 'A', 'Z');
    if (kind == 'w') pattern_add(p, &own, '_', '_');
    if (kind == 'w') pattern_add(p, &own, 'a', 'z');
    if (c != kind) pattern_negate(p, &own);
    for (uint32_t i = 0; i < own.count; i++) pattern_add(p, set, own.ranges[i].low, own.ranges[i].high);
    return 0;
  }
  *point = c;
  if (c == 'x' || c == 'u' || c == 'U') *point = pattern_hexadecimal(p, c == 'x' ? 2 : c == 'u' ? 4 : 8);
  else if (is_pattern_letter(c) || is_pattern_digit(c) || c >= 0x80 || c == '<' || c == '>') {
    int sign = 0;
    while (signs[sign] != 0 && (uint32_t)signs[sign] != c) sign++;
    if (signs[sign] == 0) pattern_refuse(p, "the pattern has an escape that is not supported");
    *point = (uint32_t)meanings[sign];
  }
  pattern_add(p, set, *point, *point);
  return 1;
}

/* Add an item of a class; whether it is one character. */
static int pattern_item(Pattern *p, PatternSet *set, uint32_t *point) {
  const uint32_t c = pattern_next(p);
  if (c == '\\') return pattern_escape(p, set, point);
  if (c == '[') pattern_refuse(p, "classes in classes of a pattern are not supported");
  if (c == SCHEMA_STRING_END) pattern_refuse(p, "a class of the pattern has no end");
  else pattern_add(p, set, c, c);
  *point = c;
  return 1;
}

/* The rest of a class in brackets. */
static void pattern_class(Pattern *p, PatternSet *set) {
  const int is_negated = pattern_skip(p, '^');
  uint32_t low = 0, high = 0;
  for (int is_first = 1; p->s->mistake == NULL && (is_first || pattern_peek(p) != ']'); is_first = 0) {
    const uint32_t sign = pattern_peek(p);
    const int is_space = pattern_is_escape(p, 's') || pattern_is_escape(p, 'S'), is_one = pattern_item(p, set, &low);
    if (is_first && (sign == ']' || (sign == '-' && pattern_peek(p) != '-'))) continue;
    if ((sign == '&' || sign == '~' || sign == '-') && pattern_peek(p) == sign) pattern_refuse(p, "operators of classes in patterns are not supported");
    Pattern ahead = *p;
    if (!pattern_skip(&ahead, '-') || pattern_peek(&ahead) == ']' || (!is_one && !is_space)) continue;
    if (!is_one || pattern_peek(&ahead) == '-') {
      pattern_refuse(p, "a class of the pattern has a range without a first or last character");
      return;
    }
    p->at = ahead.at;
    set->count--;
    if (!pattern_item(p, set, &high) || high < low) pattern_refuse(p, "a class of the pattern has a range without a first or last character");
    else set->ranges[set->count - 1].low = low;
  }
  pattern_next(p);
  if (is_negated) pattern_negate(p, set);
}

/* ----------------------------------------------------------------------------------------------------------- expressions */

static PatternLength pattern_alternatives(Pattern *p, int start, int end);

/* Skip an atom, without checking it. */
static void pattern_skip_atom(Pattern *p) {
  int depth = 0;
  do {
    const uint32_t c = pattern_next(p);
    if (c == SCHEMA_STRING_END) return;
    if (c == '\\') {
      const uint32_t sign = pattern_next(p);
      int digits = sign == 'x' ? 2 : sign == 'u' ? 4 : sign == 'U' ? 8 : 0;
      if ((digits > 0 || (sign | 32) == 'p') && pattern_peek(p) == '{')
        while (pattern_peek(p) != SCHEMA_STRING_END && pattern_next(p) != '}') digits = 0;
      while (digits-- > 0) pattern_next(p);
    }
    if (c == '[') {
      pattern_skip(p, '^');
      for (int is_first = 1; is_first || pattern_peek(p) != ']'; is_first = 0) {
        if (pattern_peek(p) == SCHEMA_STRING_END) return;
        if (pattern_next(p) == '\\') pattern_next(p);
      }
      pattern_next(p);
    }
    depth += (c == '(') - (c == ')');
  } while (depth > 0);
}

static int pattern_is_times(const Pattern *p) {
  const uint32_t c = pattern_peek(p);
  return c == '*' || c == '+' || c == '?' || c == '{';
}

static int64_t pattern_number(Pattern *p) {
  int64_t number = 0;
  if (!is_pattern_digit(pattern_peek(p))) pattern_refuse(p, "a repetition of the pattern lacks a number");
  while (is_pattern_digit(pattern_peek(p)))
    if ((number = 10 * number + (int64_t)(pattern_next(p) - '0')) > SCHEMA_TIMES) {
      pattern_refuse(p, "a number of the pattern is above 2000");
      return 0;
    }
  return number;
}

/* Read a repetition; one that takes as little as possible matches the same texts. */
static PatternLength pattern_times(Pattern *p) {
  const uint32_t c = pattern_next(p);
  PatternLength times = {c == '+', c == '?' ? 1 : -1};
  if (c == '{') {
    times.least = times.most = pattern_number(p);
    if (pattern_skip(p, ',')) times.most = pattern_peek(p) == '}' ? -1 : pattern_number(p);
    if (!pattern_skip(p, '}')) pattern_refuse(p, "a repetition of the pattern lacks '}'");
    if (times.most >= 0 && times.most < times.least) pattern_refuse(p, "a repetition of the pattern has its smaller number second");
  }
  pattern_skip(p, '?');
  return times;
}

/* A product of numbers of which those below 0 are without end, and all are cut where no limit is. */
static int64_t pattern_product(int64_t one, int64_t other) {
  const int64_t most = (int64_t)1 << 31;
  if (one == 0 || other == 0) return 0;
  if (one < 0 || other < 0) return -1;
  return one * other < most ? one * other : most;
}

static PatternLength pattern_sum(PatternLength one, PatternLength other) {
  const int64_t most = (int64_t)1 << 31;
  PatternLength sum = {one.least + other.least, one.most < 0 || other.most < 0 ? -1 : one.most + other.most};
  if (sum.least > most) sum.least = most;
  if (sum.most > most) sum.most = most;
  return sum;
}

static PatternLength pattern_group(Pattern *p, int start, int end) {
  if (p->depth == PATTERN_DEEPEST) {
    pattern_refuse(p, "the pattern has too many groups in each other");
    return pattern_nothing;
  }
  pattern_next(p);
  if (pattern_skip(p, '?') && !pattern_skip(p, ':')) {
    pattern_skip(p, 'P');
    if (!pattern_skip(p, '<') || !is_pattern_letter(pattern_peek(p)))
      pattern_refuse(p, "the pattern has a group of a kind that is not supported");
    while (pattern_peek(p) != SCHEMA_STRING_END && pattern_next(p) != '>') continue;
  }
  p->depth++;
  tenon_text_append(p->s, "(");
  const PatternLength length = pattern_alternatives(p, start, end);
  tenon_text_append(p->s, ")");
  p->depth--;
  if (!pattern_skip(p, ')')) pattern_refuse(p, "a group of the pattern has no end");
  return length;
}

static PatternLength pattern_atom(Pattern *p, int start, int end) {
  const PatternLength one = {1, 1};
  PatternSet set = {.count = 0};
  uint32_t point;
  if (pattern_peek(p) == '(') return pattern_group(p, start, end);
  const uint32_t c = pattern_next(p);
  if (c == '^' || c == '$') pattern_refuse(p, "the pattern has an anchor within the text");
  else if (c == '*' || c == '+' || c == '?' || c == '{') pattern_refuse(p, "the pattern repeats nothing");
  else if (c == '[') pattern_class(p, &set);
  else if (c == '\\') pattern_escape(p, &set, &point);
  else pattern_add(p, &set, c, c);
  if (c == '.') {
    tenon_text_put_plain(p->s, RULE_DOT);
    return one;
  }
  if (p->s->mistake == NULL) pattern_put_set(p, &set);
  return one;
}

/* An atom with its repetitions.  `is_whole`: it is the whole pattern, whose repetition may be cut to the limits of lengths. */
static PatternLength pattern_part(Pattern *p, int start, int end, int is_whole) {
  const int is_group = pattern_peek(p) == '(';
  Pattern ahead = *p;
  int count = 0;
  pattern_skip_atom(&ahead);
  for (; p->s->mistake == NULL && pattern_is_times(&ahead); count++) pattern_times(&ahead);
  if (count > PATTERN_DEEPEST) pattern_refuse(p, "the pattern has too many repetitions of each other");
  if (p->s->mistake != NULL) return pattern_nothing;
  for (int i = 1; i < count; i++) tenon_text_append(p->s, "(");
  PatternLength length = pattern_atom(p, count == 0 ? start : PATTERN_INSIDE, count == 0 ? end : PATTERN_INSIDE);
  for (int i = 0; i < count && p->s->mistake == NULL; i++) {
    PatternLength times = pattern_times(p);
    if (is_whole && count == 1 && !is_group && (p->limits.least > 0 || p->limits.most >= 0)) {
      if (times.least < p->limits.least) times.least = p->limits.least;
      if (p->limits.most >= 0 && (times.most < 0 || times.most > p->limits.most)) times.most = p->limits.most;
      if (times.most >= 0 && times.most < times.least) pattern_refuse(p, "the schema has no values");
    }
    tenon_text_put_times(p->s, (uint32_t)times.least, times.most);
    if (i + 1 < count) tenon_text_append(p->s, ")");
    length.least = pattern_product(length.least, times.least);
    length.most = pattern_product(length.most, times.most);
  }
  return length;
}

static int pattern_skip_anchors(Pattern *p, uint32_t sign, uint32_t letter) {
  int count = 0;
  for (; pattern_peek(p) == sign || pattern_is_escape(p, letter); count++)
    if (pattern_next(p) == '\\') pattern_next(p);
  return count > 0;
}

/* Parts one after another.  Where an end is open and no anchor is there, any characters come before or behind; a group at
   an end has these in its own alternatives, so that some of them can have anchors. */
static PatternLength pattern_sequence(Pattern *p, int start, int end) {
  const PatternLength any = {0, -1};
  PatternLength length = pattern_nothing;
  int parts = 0;
  if (pattern_skip_anchors(p, '^', 'A')) {
    if (start == PATTERN_INSIDE) pattern_refuse(p, "the pattern has an anchor within the text");
    start = PATTERN_AT_END;
  }
  for (; p->s->mistake == NULL && !pattern_ends(p); parts++) {
    Pattern ahead = *p;
    if (pattern_skip_anchors(&ahead, '$', 'z')) {
      if (end == PATTERN_INSIDE || !pattern_ends(&ahead)) pattern_refuse(p, "the pattern has an anchor within the text");
      p->at = ahead.at;
      end = PATTERN_AT_END;
      break;
    }
    pattern_skip_atom(&ahead);
    const int is_group = pattern_peek(p) == '(' && !pattern_is_times(&ahead);
    while (p->s->mistake == NULL && pattern_is_times(&ahead)) pattern_times(&ahead);
    const int is_last = pattern_ends(&ahead), is_anchored = end != PATTERN_INSIDE && pattern_skip_anchors(&ahead, '$', 'z') && pattern_ends(&ahead);
    if (start == PATTERN_OPEN && !is_group) {
      tenon_text_put_plain(p->s, RULE_CHAR);
      tenon_text_append(p->s, "* ");
      length = pattern_sum(length, any);
      start = PATTERN_INSIDE;
    }
    const int is_whole = p->depth == 0 && parts == 0 && start == PATTERN_AT_END && is_anchored && pattern_peek(&ahead) == SCHEMA_STRING_END;
    const int own_end = is_last ? end : is_anchored ? PATTERN_AT_END : PATTERN_INSIDE;
    length = pattern_sum(length, pattern_part(p, start, own_end, is_whole && p->is_limited));
    tenon_text_append(p->s, " ");
    if (is_last && is_group) end = PATTERN_AT_END;
    start = PATTERN_INSIDE;
  }
  if (end == PATTERN_OPEN || (start == PATTERN_OPEN && parts == 0)) {
    tenon_text_put_plain(p->s, RULE_CHAR);
    tenon_text_append(p->s, "*");
    return pattern_sum(length, any);
  }
  if (parts == 0) tenon_text_append(p->s, "\"\"");
  return length;
}

static PatternLength pattern_alternatives(Pattern *p, int start, int end) {
  PatternLength length = pattern_sequence(p, start, end);
  while (p->s->mistake == NULL && pattern_skip(p, '|')) {
    tenon_text_append(p->s, " | ");
    const PatternLength other = pattern_sequence(p, start, end);
    if (other.least < length.least) length.least = other.least;
    if (length.most >= 0 && (other.most < 0 || other.most > length.most)) length.most = other.most;
  }
  return length;
}

/* Whether the first sequence is the whole pattern. */
static int pattern_is_one(const Pattern *p) {
  Pattern ahead = *p;
  while (pattern_peek(&ahead) != SCHEMA_STRING_END && pattern_peek(&ahead) != '|') pattern_skip_atom(&ahead);
  return pattern_peek(&ahead) == SCHEMA_STRING_END;
}

void tenon_text_pattern(Schema *schema, size_t pattern, int64_t least, int64_t most) {
  Pattern p = {schema, pattern + 1, pattern, {least, most}, 0, 0};
  p.is_limited = pattern_is_one(&p);
  const PatternLength length = pattern_alternatives(&p, PATTERN_OPEN, PATTERN_OPEN);
  if (pattern_peek(&p) != SCHEMA_STRING_END) pattern_refuse(&p, "the pattern has ')' without '('");
  if (length.least < least || (most >= 0 && (length.most < 0 || length.most > most)))
    pattern_refuse(&p, "lengths that the pattern does not imply are not supported beside it");
}
