#include "text_grammar.h"
#include "text_tables.h"
#include <string.h>

/* Grammars in GBNF as programs: each rule becomes steps, and what is repeated is copied. */

static int refuse(TextGrammar *g, size_t at, const char *mistake) {
  if (g->mistake == NULL) {
    g->at = at;
    g->mistake = mistake;
  }
  return 0;
}

static int put_step(TextGrammar *g, int op, uint32_t a, uint32_t b) {
  const GrammarStep step = {(uint16_t)a, (uint8_t)op, (uint8_t)b};
  if (g->step_count == g->step_room) return refuse(g, g->at, "it is too large");
  g->steps[g->step_count++] = step;
  return 1;
}

/* Put a step before others, whose jumps among each other stay right. */
static int put_before(TextGrammar *g, uint32_t at, int op, uint32_t a) {
  if (!put_step(g, op, a, 0)) return 0;
  const GrammarStep step = g->steps[g->step_count - 1];
  memmove(g->steps + at + 1, g->steps + at, (g->step_count - 1 - at) * sizeof step);
  g->steps[at] = step;
  return 1;
}

/* Alternatives, whose jumps to the end are a list, each with the place of the one before. */
static int end_alternative(TextGrammar *g, uint32_t start, uint32_t *jumps) {
  if (!put_before(g, start, GRAMMAR_SPLIT, g->step_count - start + 2) || !put_step(g, GRAMMAR_JUMP, *jumps, 0)) return 0;
  *jumps = g->step_count - 1;
  return 1;
}

static void end_alternatives(TextGrammar *g, uint32_t jumps) {
  while (jumps != GRAMMAR_NONE) {
    const uint32_t before = g->steps[jumps].a;
    g->steps[jumps].a = (uint16_t)(g->step_count - jumps);
    jumps = before;
  }
}

static int next_byte(const TextGrammar *g) { return g->at < g->length ? g->source[g->at] : 0; }

static int is_digit(int c) { return c >= '0' && c <= '9'; }

static int is_in_name(int c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) || c == '-' || c == '_';
}

/* Leave out blanks and comments, with `lines` ends of lines, too. */
static void skip_blanks(TextGrammar *g, int lines) {
  for (int c = next_byte(g); c == ' ' || c == '\t' || c == '#' || (lines && (c == '\n' || c == '\r')); c = next_byte(g)) {
    g->at++;
    while (c == '#' && g->at < g->length && g->source[g->at] != '\n' && g->source[g->at] != '\r') g->at++;
  }
}

static int read_hexadecimal(TextGrammar *g, int digits, uint32_t *value) {
  *value = 0;
  for (; digits > 0; digits--, g->at++) {
    const int c = next_byte(g), letter = c | 32;
    if (!is_digit(c) && !(letter >= 'a' && letter <= 'f')) return refuse(g, g->at, "a hexadecimal digit is missing");
    *value = *value << 4 | (uint32_t)(is_digit(c) ? c - '0' : letter - 'a' + 10);
  }
  return *value < TEXT_CODE_POINTS && !(*value >= 0xd800 && *value < 0xe000) ? 1 : refuse(g, g->at, "it is no character");
}

/* The next character of a literal or a class; `escaped` if it was written with a backslash. */
static int read_character(TextGrammar *g, uint32_t *point, int *escaped) {
  static const char signs[] = "\"\\[]-^/nrt", meanings[] = "\"\\[]-^/\n\r\t";
  size_t bytes;
  if (g->at >= g->length) return refuse(g, g->at, "it ends within quotes or brackets");
  *point = tenon_text_point(g->source + g->at, g->length - g->at, &bytes);
  g->at += bytes;
  *escaped = *point == '\\';
  if (!*escaped) return 1;
  const int c = next_byte(g);
  g->at++;
  for (int i = 0; signs[i] != 0; i++) {
    if (signs[i] != c) continue;
    *point = (uint32_t)meanings[i];
    return 1;
  }
  if (c == 'x' || c == 'u' || c == 'U') return read_hexadecimal(g, c == 'x' ? 2 : c == 'u' ? 4 : 8, point);
  return refuse(g, g->at - 1, "no character follows the backslash");
}

size_t tenon_text_utf8(uint32_t point, uint8_t bytes[4]) {
  const size_t count = point < 0x80 ? 1 : point < 0x800 ? 2 : point < 0x10000 ? 3 : 4;
  static const uint8_t firsts[5] = {0, 0, 0xc0, 0xe0, 0xf0};
  for (size_t i = count; i-- > 1; point >>= 6) bytes[i] = (uint8_t)(0x80 | (point & 0x3f));
  bytes[0] = (uint8_t)(firsts[count] | point);
  return count;
}

static int put_literal(TextGrammar *g) {
  uint32_t point;
  int escaped;
  uint8_t bytes[4];
  for (g->at++; read_character(g, &point, &escaped);) {
    if (point == '"' && !escaped) return 1;
    const size_t count = tenon_text_utf8(point, bytes);
    for (size_t i = 0; i < count; i++)
      if (!put_step(g, GRAMMAR_BYTE, bytes[i], bytes[i])) return 0;
  }
  return 0;
}

/* Put the bytes of the characters from `low` to `high`, as alternatives of ranges of bytes. */
static int put_range(TextGrammar *g, uint32_t low, uint32_t high, uint32_t *jumps) {
  static const uint32_t limits[] = {0x7f, 0x7ff, 0xd7ff, 0xdfff, 0xffff};
  if (low > high || (low >= 0xd800 && high < 0xe000)) return 1;
  for (int i = 0; i < 5; i++)
    if (low <= limits[i] && high > limits[i])
      return put_range(g, low, limits[i], jumps) && put_range(g, limits[i] + 1, high, jumps);
  for (uint32_t mask = 0x3f; low >= 0x80 && mask <= 0x3ffff; mask = mask << 6 | 0x3f) {
    if ((low & ~mask) == (high & ~mask)) continue;
    if ((low & mask) != 0) return put_range(g, low, low | mask, jumps) && put_range(g, (low | mask) + 1, high, jumps);
    if ((high & mask) != mask)
      return put_range(g, low, (high & ~mask) - 1, jumps) && put_range(g, high & ~mask, high, jumps);
  }
  uint8_t lows[4], highs[4];
  const uint32_t start = g->step_count;
  const size_t count = tenon_text_utf8(low, lows);
  tenon_text_utf8(high, highs);
  for (size_t i = 0; i < count; i++)
    if (!put_step(g, GRAMMAR_BYTE, lows[i], highs[i])) return 0;
  return end_alternative(g, start, jumps);
}

/* Put the characters that are in none of some ranges. */
static int put_others(TextGrammar *g, uint32_t (*ranges)[2], uint32_t count, uint32_t *jumps) {
  uint32_t from = 0;
  for (uint32_t i = 0; i < count; i++) {
    if (ranges[i][0] > from && !put_range(g, from, ranges[i][0] - 1, jumps)) return 0;
    if (ranges[i][1] >= from) from = ranges[i][1] + 1;
  }
  return put_range(g, from, TEXT_CODE_POINTS - 1, jumps);
}

/* Read the ranges of a class, in order. */
static int ranges_of(TextGrammar *g, uint32_t (*ranges)[2], uint32_t *count) {
  enum { MOST = GRAMMAR_MOVES * sizeof(uint16_t) / sizeof *ranges };
  uint32_t low, high;
  int escaped;
  while (read_character(g, &low, &escaped)) {
    if (low == ']' && !escaped) return 1;
    high = low;
    if (next_byte(g) == '-' && g->at + 1 < g->length && g->source[g->at + 1] != ']') {
      g->at++;
      if (!read_character(g, &high, &escaped)) return 0;
      if (high < low) return refuse(g, g->at, "the range has its larger character first");
    }
    if (*count == MOST) return refuse(g, g->at, "the class is too large");
    uint32_t at = (*count)++;
    for (; at > 0 && ranges[at - 1][0] > low; at--) memcpy(ranges[at], ranges[at - 1], sizeof *ranges);
    ranges[at][0] = low;
    ranges[at][1] = high;
  }
  return 0;
}

static int put_class(TextGrammar *g) {
  uint32_t(*ranges)[2] = (uint32_t(*)[2])(void *)g->moves, count = 0, jumps = GRAMMAR_NONE;
  const int is_negated = g->at + 1 < g->length && g->source[g->at + 1] == '^';
  g->at += 1 + (size_t)is_negated;
  if (!ranges_of(g, ranges, &count)) return 0;
  if (is_negated && !put_others(g, ranges, count, &jumps)) return 0;
  for (uint32_t i = 0; !is_negated && i < count; i++)
    if (!put_range(g, ranges[i][0], ranges[i][1], &jumps)) return 0;
  if (!put_step(g, GRAMMAR_FAIL, 0, 0)) return 0;
  end_alternatives(g, jumps);
  return 1;
}

/* Any character but a line feed, as in a regular expression. */
static int put_any(TextGrammar *g) {
  uint32_t line[1][2] = {{'\n', '\n'}}, jumps = GRAMMAR_NONE;
  g->at++;
  if (!put_others(g, line, 1, &jumps) || !put_step(g, GRAMMAR_FAIL, 0, 0)) return 0;
  end_alternatives(g, jumps);
  return 1;
}

/* The number of the rule whose name is next; it is made for the first mention. */
static int rule_number(TextGrammar *g, uint32_t *number) {
  const size_t start = g->at;
  while (is_in_name(next_byte(g))) g->at++;
  const size_t length = g->at - start;
  for (uint32_t i = 0; i < g->rule_count; i++)
    if (g->rules[i].length == length && memcmp(g->source + g->rules[i].name, g->source + start, length) == 0) {
      *number = i;
      return 1;
    }
  if (length == 0) return refuse(g, start, "the name of a rule is missing");
  if (g->rule_count == g->rule_room) return refuse(g, start, "it has too many rules");
  const GrammarRule rule = {(uint32_t)start, (uint32_t)length, GRAMMAR_NONE, 0, 0};
  *number = g->rule_count;
  g->rules[g->rule_count++] = rule;
  return 1;
}

static int read_decimal(TextGrammar *g, uint32_t *value) {
  if (!is_digit(next_byte(g))) return refuse(g, g->at, "a number is missing");
  for (*value = 0; is_digit(next_byte(g)); g->at++)
    if ((*value = 10 * *value + (uint32_t)(next_byte(g) - '0')) > GRAMMAR_MOST_STEPS) return refuse(g, g->at, "it is too large");
  return 1;
}

static int put_copy(TextGrammar *g, uint32_t from, uint32_t count) {
  for (uint32_t i = 0; i < count; i++)
    if (!put_step(g, g->steps[from + i].op, g->steps[from + i].a, g->steps[from + i].b)) return 0;
  return 1;
}

/* Repeat what begins at a step `least` to `most` times (GRAMMAR_NONE: any number). */
static int repeat_steps(TextGrammar *g, uint32_t start, uint32_t least, uint32_t most) {
  const uint32_t length = g->step_count - start;
  if (most == 0 || length == 0) {
    g->step_count = start;
    return 1;
  }
  if (most == GRAMMAR_NONE && least == 0)
    return put_before(g, start, GRAMMAR_SPLIT, length + 2) && put_step(g, GRAMMAR_JUMP, 0u - (length + 1), 0);
  for (uint32_t i = 1; i < least; i++)
    if (!put_copy(g, start, length)) return 0;
  if (most == GRAMMAR_NONE) return put_step(g, GRAMMAR_SPLIT, 0u - length, 0);
  uint32_t body = start, left = most - least;
  if (least == 0) {
    const size_t end = (size_t)left * (length + 1);
    if (end > GRAMMAR_MOST_STEPS) return refuse(g, g->at, "it is too large");
    if (!put_before(g, body++, GRAMMAR_SPLIT, (uint32_t)end)) return 0;
    left--;
  }
  for (; left > 0; left--) {
    const size_t end = (size_t)left * (length + 1);
    if (end > GRAMMAR_MOST_STEPS) return refuse(g, g->at, "it is too large");
    if (!put_step(g, GRAMMAR_SPLIT, (uint32_t)end, 0) || !put_copy(g, body, length)) return 0;
  }
  return 1;
}

static int put_repetition(TextGrammar *g, uint32_t start) {
  uint32_t least, most;
  switch (next_byte(g)) {
    case '*': g->at++; return repeat_steps(g, start, 0, GRAMMAR_NONE);
    case '+': g->at++; return repeat_steps(g, start, 1, GRAMMAR_NONE);
    case '?': g->at++; return repeat_steps(g, start, 0, 1);
    case '{': break;
    default: return 1;
  }
  g->at++;
  skip_blanks(g, 1);
  if (!read_decimal(g, &least)) return 0;
  most = least;
  skip_blanks(g, 1);
  if (next_byte(g) == ',') {
    g->at++;
    skip_blanks(g, 1);
    most = GRAMMAR_NONE;
    if (is_digit(next_byte(g)) && !read_decimal(g, &most)) return 0;
    skip_blanks(g, 1);
  }
  if (next_byte(g) != '}') return refuse(g, g->at, "'}' is missing");
  g->at++;
  if (most < least) return refuse(g, g->at, "the smaller number of a repetition is the second");
  return repeat_steps(g, start, least, most);
}

static int put_alternatives(TextGrammar *g, int depth);

/* Put a part of a sequence; 0 at its end, or after a mistake. */
static int put_part(TextGrammar *g, int depth) {
  enum { DEEPEST = 100 };
  uint32_t rule;
  const int c = next_byte(g);
  if (c == '"') return put_literal(g);
  if (c == '[') return put_class(g);
  if (c == '.') return put_any(g);
  if (is_in_name(c)) return rule_number(g, &rule) && put_step(g, GRAMMAR_CALL, rule, 0);
  if (c != '(') return 0;
  if (depth == DEEPEST) return refuse(g, g->at, "it has too many parentheses in each other");
  g->at++;
  skip_blanks(g, 1);
  if (!put_alternatives(g, depth + 1)) return 0;
  if (next_byte(g) != ')') return refuse(g, g->at, "')' is missing");
  g->at++;
  return 1;
}

static int put_alternatives(TextGrammar *g, int depth) {
  uint32_t jumps = GRAMMAR_NONE;
  for (;;) {
    const uint32_t start = g->step_count;
    for (uint32_t part = start; put_part(g, depth); part = g->step_count) {
      skip_blanks(g, depth > 0);
      if (!put_repetition(g, part)) return 0;
      skip_blanks(g, depth > 0);
    }
    if (g->mistake != NULL) return 0;
    if (next_byte(g) != '|') break;
    g->at++;
    skip_blanks(g, 1);
    if (!end_alternative(g, start, &jumps)) return 0;
  }
  end_alternatives(g, jumps);
  return 1;
}

static int put_rule(TextGrammar *g) {
  uint32_t number;
  const size_t start = g->at;
  if (!rule_number(g, &number)) return 0;
  if (g->rules[number].start != GRAMMAR_NONE) return refuse(g, start, "the rule is there twice");
  skip_blanks(g, 0);
  if (g->length - g->at < 3 || memcmp(g->source + g->at, "::=", 3) != 0) return refuse(g, g->at, "'::=' is missing");
  g->at += 3;
  skip_blanks(g, 1);
  g->rules[number].start = (uint16_t)g->step_count;
  if (!put_alternatives(g, 0) || !put_step(g, GRAMMAR_END, 0, 0)) return 0;
  if (g->at < g->length && next_byte(g) != '\n' && next_byte(g) != '\r') return refuse(g, g->at, "it cannot be read from here");
  skip_blanks(g, 1);
  return 1;
}

/* ------------------------------------------------------------------------------------------------------------- checks */

uint32_t tenon_text_grammar_target(const TextGrammar *g, uint32_t step) { return (uint16_t)(step + g->steps[step].a); }

/* Whether a rule can be nothing, and whether it begins only with rules that are safe. */
static void look_at_rule(TextGrammar *g, const GrammarRule *rule, int *is_empty, int *is_safe) {
  uint32_t count = 0;
  for (uint32_t i = rule->start; g->steps[i].op != GRAMMAR_END; i++) g->nodes[i].mark = g->nodes[i + 1].mark = 0;
  *is_empty = 0;
  *is_safe = 1;
  g->stack[count++] = rule->start;
  g->nodes[rule->start].mark = 1;
  while (count > 0) {
    const uint32_t at = g->stack[--count];
    const GrammarStep step = g->steps[at];
    uint32_t next[2], ways = 0;
    if (step.op == GRAMMAR_END) *is_empty = 1;
    if (step.op == GRAMMAR_CALL && !g->rules[step.a].is_safe) *is_safe = 0;
    if (step.op == GRAMMAR_SPLIT || (step.op == GRAMMAR_CALL && g->rules[step.a].is_empty)) next[ways++] = at + 1;
    if (step.op == GRAMMAR_SPLIT || step.op == GRAMMAR_JUMP) next[ways++] = tenon_text_grammar_target(g, at);
    for (uint32_t i = 0; i < ways; i++) {
      if (g->nodes[next[i]].mark) continue;
      g->nodes[next[i]].mark = 1;
      g->stack[count++] = (uint16_t)next[i];
    }
  }
}

/* Check that all rules are there, and that none begins with itself. */
static int check_rules(TextGrammar *g) {
  int is_empty, is_safe;
  for (uint32_t i = 0; i < g->rule_count; i++)
    if (g->rules[i].start == GRAMMAR_NONE) return refuse(g, g->rules[i].name, "the rule is not there");
  for (int again = 1; again;) {
    again = 0;
    for (uint32_t i = 0; i < g->rule_count; i++) {
      if (g->rules[i].is_empty) continue;
      look_at_rule(g, &g->rules[i], &is_empty, &is_safe);
      g->rules[i].is_empty = (uint8_t)is_empty;
      again |= is_empty;
    }
  }
  for (int again = 1; again;) {
    again = 0;
    for (uint32_t i = 0; i < g->rule_count; i++) {
      if (g->rules[i].is_safe) continue;
      look_at_rule(g, &g->rules[i], &is_empty, &is_safe);
      g->rules[i].is_safe = (uint8_t)is_safe;
      again |= is_safe;
    }
  }
  for (uint32_t i = 0; i < g->rule_count; i++)
    if (!g->rules[i].is_safe) return refuse(g, g->rules[i].name, "the rule begins with itself, or with one that does");
  return 1;
}

static int find_root(TextGrammar *g) {
  for (g->root = 0; g->root < g->rule_count; g->root++)
    if (g->rules[g->root].length == 4 && memcmp(g->source + g->rules[g->root].name, "root", 4) == 0) return 1;
  return refuse(g, g->length, "the rule root is not there");
}

int tenon_text_grammar_read(TextGrammar *g) {
  for (skip_blanks(g, 1); g->at < g->length;)
    if (!put_rule(g)) return TENON_TEXT_BAD_GRAMMAR;
  return find_root(g) && check_rules(g) ? 0 : TENON_TEXT_BAD_GRAMMAR;
}
