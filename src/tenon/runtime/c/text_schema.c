#include "text_schema.h"
#include "text_grammar.h"
#include "text_rules.h"
#include "text_tables.h"
#include <string.h>

/* Schemas as rules.  The rule of the schema at byte N is called sN, so that a schema which is referred to is written once
   and recursive ones end; bits say which rules are wanted and which are written. */

enum { SCHEMA_DEEPEST = 64, SCHEMA_DIGITS = 18 };

/* Types, and what else a keyword belongs to: nothing; values; schemas that stand alone. */
enum {
  SCHEMA_OBJECT = 1, SCHEMA_ARRAY = 2, SCHEMA_STRING = 4, SCHEMA_NUMBER = 8, SCHEMA_BOOLEAN = 16, SCHEMA_NULL = 32,
  SCHEMA_INTEGER = 64, SCHEMA_ALL = 63, SCHEMA_NOTE = 128, SCHEMA_TYPE = 256, SCHEMA_VALUES = 512, SCHEMA_ALONE = 1024
};

enum {
  WORD_TYPE, WORD_ENUM, WORD_CONST, WORD_REF, WORD_ANY_OF, WORD_ONE_OF, WORD_ALL_OF, WORD_PROPERTIES, WORD_REQUIRED,
  WORD_ADDITIONAL, WORD_ITEMS, WORD_PREFIX_ITEMS, WORD_MIN_ITEMS, WORD_MAX_ITEMS, WORD_MIN_LENGTH, WORD_MAX_LENGTH,
  WORD_PATTERN, WORD_FORMAT,
  WORD_MINIMUM, WORD_MAXIMUM, WORD_ABOVE, WORD_BELOW, WORDS
};

/* Texts one after another, which take no relocations. */
static const char schema_words[] =
    "type\0enum\0const\0$ref\0anyOf\0oneOf\0allOf\0properties\0required\0additionalProperties\0items\0prefixItems\0"
    "minItems\0maxItems\0minLength\0maxLength\0pattern\0format\0minimum\0maximum\0exclusiveMinimum\0exclusiveMaximum\0"
    /* what says nothing about values, or only holds what others refer to */
    "title\0description\0default\0examples\0deprecated\0readOnly\0writeOnly\0$schema\0$id\0$comment\0$defs\0"
    "definitions\0$anchor\0";

static const uint16_t schema_kinds[WORDS] = {
    SCHEMA_TYPE, SCHEMA_VALUES, SCHEMA_VALUES, SCHEMA_ALONE, SCHEMA_ALONE, SCHEMA_ALONE, SCHEMA_ALONE, SCHEMA_OBJECT,
    SCHEMA_OBJECT, SCHEMA_OBJECT, SCHEMA_ARRAY, SCHEMA_ARRAY, SCHEMA_ARRAY, SCHEMA_ARRAY, SCHEMA_STRING, SCHEMA_STRING,
    SCHEMA_STRING, SCHEMA_STRING, SCHEMA_INTEGER, SCHEMA_INTEGER, SCHEMA_INTEGER, SCHEMA_INTEGER};

#define SCHEMA_CLASS "[^\"\\\\\\x00-\\x1F\\x7F"
static const char schema_plain[] = /* names and rules in the order of their numbers, and those that formats mention */
    "object\0" "\"{\" (string \":\" value (\",\" string \":\" value)*)? \"}\"\0"
    "array\0" "\"[\" (value (\",\" value)*)? \"]\"\0"
    "string\0" "\"\\\"\" rest\0"
    "number\0" "integer (\".\" [0-9]+)? ([eE] [-+]? [0-9]+)?\0"
    "boolean\0" "\"true\" | \"false\"\0"
    "null\0" "\"null\"\0"
    "integer\0" "\"-\"? (\"0\" | [1-9] [0-9]*)\0"
    "value\0" "object | array | string | number | boolean | null\0"
    "char\0" SCHEMA_CLASS "] | escape\0"
    "escape\0" "\"\\\\\" ([\"\\\\bfnrt] | \"u00\" [01] [0-9a-fA-F] | \"u007\" [fF])\0"
    "rest\0" "char* \"\\\"\"\0"
    "dot\0" "[^\"\\\\\\x00-\\x1F\\x7F] | \"\\\\\" ([\"\\\\bfrt] | \"u000\" [0-9b-fB-F] | \"u001\" [0-9a-fA-F] | "
    "\"u007\" [fF])\0"
    "date\0" "[0-9]{4} \"-\" ((\"0\" [13578] | \"1\" [02]) \"-\" (\"0\" [1-9] | [12] [0-9] | \"3\" [01]) | (\"0\" [469] "
    "| \"11\") \"-\" (\"0\" [1-9] | [12] [0-9] | \"30\") | \"02-\" (\"0\" [1-9] | [12] [0-9]))\0"
    "time\0" "minute \":\" ([0-5] [0-9] | \"60\") (\".\" [0-9]+)? ([zZ] | [-+] minute)\0"
    "date-time\0" "date [tT] time\0"
    "duration\0" "\"P\" ((years | months | days) span? | span | [0-9]+ \"W\")\0"
    "email\0" "atom (\".\" atom)* \"@\" (domain (\".\" domain)* | \"[\" ipv4 \"]\")\0"
    "hostname\0" "label (\".\" label)*\0"
    "ipv4\0" "(octet \".\"){3} octet\0"
    "ipv6\0" "(quad \":\"){7} quad | \"::\" (quad \":\"){0,5} quads | quad? \"::\" (quad \":\"){0,4} quads | ((quad "
    "\":\"){0,1} quad)? \"::\" (quad \":\"){0,3} quads | ((quad \":\"){0,2} quad)? \"::\" (quad \":\"){0,2} "
    "quads | ((quad \":\"){0,3} quad)? \"::\" quad \":\" quads | ((quad \":\"){0,4} quad)? \"::\" quads | "
    "((quad \":\"){0,5} quad)? \"::\" quad | ((quad \":\"){0,6} quad)? \"::\"\0"
    "uuid\0" "hex{8} (\"-\" hex{4}){3} \"-\" hex{12}\0"
    "uri\0" "[a-zA-Z] [-+.a-zA-Z0-9]* \":\" (\"//\" ((plain | \":\")* \"@\")? (plain* | \"[\" literal \"]\") (\":\" "
    "[0-9]*)? path | \"/\" (segment+ path)? | segment+ path | \"\") (\"?\" query)? (\"#\" query)?\0"
    "unknown\0" "char*\0"
    "hex\0" "[0-9a-fA-F]\0"
    "minute\0" "([01] [0-9] | \"2\" [0-3]) \":\" [0-5] [0-9]\0"
    "years\0" "[0-9]+ \"Y\" months?\0"
    "months\0" "[0-9]+ \"M\" days?\0"
    "days\0" "[0-9]+ \"D\"\0"
    "span\0" "\"T\" ([0-9]+ \"H\" ([0-9]+ \"M\" ([0-9]+ \"S\")?)? | [0-9]+ \"M\" ([0-9]+ \"S\")? | [0-9]+ \"S\")\0"
    "atom\0" "[-a-zA-Z0-9!#$%&'*+/=?^_`{|}~]+\0"
    "domain\0" "[a-zA-Z0-9] ([-a-zA-Z0-9]* [a-zA-Z0-9])?\0"
    "label\0" "[a-zA-Z0-9] ([-a-zA-Z0-9]{0,61} [a-zA-Z0-9])?\0"
    "octet\0" "[0-9] | [1-9] [0-9] | \"1\" [0-9] [0-9] | \"2\" [0-4] [0-9] | \"25\" [0-5]\0"
    "quad\0" "hex{1,4}\0"
    "quads\0" "quad \":\" quad\0"
    "plain\0" "[-a-zA-Z0-9._~!$&'()*+,;=] | \"%\" hex hex\0"
    "segment\0" "plain | [:@]\0"
    "path\0" "(\"/\" segment*)*\0"
    "query\0" "(segment | [/?])*\0"
    "literal\0" "(quad \":\"){7} quad | (quad \":\"){1,7} \":\" | (quad \":\"){1,6} \":\" quad | (quad \":\"){1,5} (\":\" "
    "quad){1,2} | (quad \":\"){1,4} (\":\" quad){1,3} | (quad \":\"){1,3} (\":\" quad){1,4} | (quad "
    "\":\"){1,2} (\":\" quad){1,5} | quad \":\" (\":\" quad){1,6} | \":\" (\":\" quad){1,7} | \"::\" | [vV] "
    "hex+ \".\" (plain | \":\")+\0";

static const char *schema_text_of(const char *texts, int number) {
  while (number-- > 0) texts += strlen(texts) + 1;
  return texts;
}

int tenon_text_refuse(Schema *s, size_t at, const char *mistake) {
  if (s->mistake == NULL) {
    s->at = at;
    s->mistake = mistake;
  }
  return 0;
}

/* --------------------------------------------------------------------------------------------------------------- JSON */

static int schema_byte(const Schema *s, size_t at) { return at < s->length ? s->s[at] : 0; }

static int is_blank(int c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

static size_t schema_blanks(const Schema *s, size_t at) {
  while (is_blank(schema_byte(s, at))) at++;
  return at;
}

static uint32_t schema_hexadecimal(const Schema *s, size_t at) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; i++) {
    const int c = schema_byte(s, at + i), letter = c | 32, digit = c >= '0' && c <= '9';
    if (!digit && !(letter >= 'a' && letter <= 'f')) return SCHEMA_STRING_END;
    value = value << 4 | (uint32_t)(digit ? c - '0' : letter - 'a' + 10);
  }
  return value;
}

/* The next character of a string, of which `*at` is behind the quote; SCHEMA_STRING_END at its end, or where it is none. */
uint32_t tenon_text_character(const Schema *s, size_t *at) {
  static const char signs[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
  const int c = schema_byte(s, *at), sign = schema_byte(s, *at + 1);
  size_t bytes = 2;
  if (c == '"' || c < ' ') return SCHEMA_STRING_END;
  if (c != '\\') {
    const uint32_t point = tenon_text_point(s->s + *at, s->length - *at, &bytes);
    *at += bytes;
    return point;
  }
  for (int i = 0; signs[i] != 0; i++)
    if (signs[i] == sign) {
      *at += 2;
      return (uint32_t)meanings[i];
    }
  uint32_t point = sign == 'u' ? schema_hexadecimal(s, *at + 2) : SCHEMA_STRING_END;
  if (point >= 0xd800 && point < 0xe000) {
    const int is_pair = point < 0xdc00 && schema_byte(s, *at + 6) == '\\' && schema_byte(s, *at + 7) == 'u';
    const uint32_t low = is_pair ? schema_hexadecimal(s, *at + 8) : 0;
    if (low < 0xdc00 || low >= 0xe000) return SCHEMA_STRING_END;
    point = 0x10000 + ((point - 0xd800) << 10 | (low - 0xdc00));
    *at += 6;
  }
  if (point != SCHEMA_STRING_END) *at += 6;
  return point;
}

/* The place behind a string. */
static size_t schema_after_string(const Schema *s, size_t at) {
  at++;
  while (tenon_text_character(s, &at) != SCHEMA_STRING_END) continue;
  return at + 1;
}

static int is_scalar(int c) { return c > ' ' && c != ',' && c != ':' && c != '"' && (c | 32) != '{' && (c | 32) != '}'; }

/* The place behind a value that was checked. */
static size_t schema_after(const Schema *s, size_t at) {
  int depth = 0;
  do {
    const int c = schema_byte(s, at);
    depth += (c == '{' || c == '[') - (c == '}' || c == ']');
    if (c == '"') at = schema_after_string(s, at);
    else if (is_scalar(c)) while (is_scalar(schema_byte(s, at))) at++;
    else at++;
  } while (depth > 0);
  return at;
}

/* The next value of an object or, where `key` is NULL, of an array, `*at` being at first the place of this one. */
static int schema_next(const Schema *s, size_t *at, size_t *key, size_t *value) {
  for (int i = 0; i < 2; i++) {
    const int c = schema_byte(s, *at);
    if (c == '}' || c == ']') return 0;
    if (i == 0) *at = schema_blanks(s, *at + 1);
  }
  if (key != NULL) {
    *key = *at;
    *at = schema_blanks(s, schema_blanks(s, schema_after(s, *at)) + 1);
  }
  *value = *at;
  *at = schema_blanks(s, schema_after(s, *at));
  return 1;
}

static size_t schema_digits(const Schema *s, size_t at) {
  while (schema_byte(s, at) >= '0' && schema_byte(s, at) <= '9') at++;
  return at;
}

/* The place behind a number, or its own where there is none. */
static size_t schema_after_number(const Schema *s, size_t start) {
  const size_t whole = start + (schema_byte(s, start) == '-');
  size_t at = schema_digits(s, whole);
  if (at == whole || (at > whole + 1 && s->s[whole] == '0')) return start;
  if (schema_byte(s, at) == '.') {
    const size_t fraction = at + 1;
    if ((at = schema_digits(s, fraction)) == fraction) return start;
  }
  if ((schema_byte(s, at) | 32) != 'e') return at;
  const size_t power = at + 1 + (schema_byte(s, at + 1) == '-' || schema_byte(s, at + 1) == '+');
  return (at = schema_digits(s, power)) == power ? start : at;
}

/* Check a value; the place behind it, or 0. */
static size_t schema_check(Schema *s, size_t at, int depth) {
  static const char *const words[] = {"true", "false", "null"};
  const int first = schema_byte(s, at), end = first == '{' ? '}' : ']';
  if (depth == SCHEMA_DEEPEST) return (size_t)tenon_text_refuse(s, at, "it has too many values in each other");
  if (first == '"') {
    const size_t behind = schema_after_string(s, at);
    return schema_byte(s, behind - 1) == '"' ? behind : (size_t)tenon_text_refuse(s, at, "the string has no end, or is damaged");
  }
  for (size_t i = 0; i < 3; i++) {
    const size_t length = strlen(words[i]);
    if (s->length - at >= length && memcmp(s->s + at, words[i], length) == 0) return at + length;
  }
  if (first != '{' && first != '[') {
    const size_t behind = schema_after_number(s, at);
    return behind > at ? behind : (size_t)tenon_text_refuse(s, at, "it is no JSON from here");
  }
  at = schema_blanks(s, at + 1);
  if (schema_byte(s, at) == end) return at + 1;
  for (;;) {
    if (first == '{') {
      if (schema_byte(s, at) != '"') return (size_t)tenon_text_refuse(s, at, "a name in quotes is missing");
      if ((at = schema_check(s, at, depth + 1)) == 0) return 0;
      at = schema_blanks(s, at);
      if (schema_byte(s, at) != ':') return (size_t)tenon_text_refuse(s, at, "':' is missing");
      at = schema_blanks(s, at + 1);
    }
    if ((at = schema_check(s, at, depth + 1)) == 0) return 0;
    at = schema_blanks(s, at);
    if (schema_byte(s, at) == end) return at + 1;
    if (schema_byte(s, at) != ',') return (size_t)tenon_text_refuse(s, at, "',' or a bracket is missing");
    at = schema_blanks(s, at + 1);
  }
}

static int schema_is(const Schema *s, size_t at, const char *word) {
  if (schema_byte(s, at++) != '"') return 0;
  for (; *word != 0; word++)
    if (tenon_text_character(s, &at) != (uint32_t)(uint8_t)*word) return 0;
  return schema_byte(s, at) == '"';
}

/* Whether two strings begin with the same `count` characters; the next ones are put where `next` says. */
static int schema_alike(const Schema *s, size_t first, size_t second, uint32_t count, uint32_t next[2]) {
  first++, second++;
  for (uint32_t i = 0;; i++) {
    next[0] = tenon_text_character(s, &first);
    next[1] = tenon_text_character(s, &second);
    if (i == count) return 1;
    if (next[0] != next[1] || next[0] == SCHEMA_STRING_END) return 0;
  }
}

static int schema_same(const Schema *s, size_t first, size_t second) {
  uint32_t count = 0, next[2];
  while (schema_alike(s, first, second, count, next) && next[0] == next[1] && next[0] != SCHEMA_STRING_END) count++;
  return next[0] == next[1];
}

/* ------------------------------------------------------------------------------------------------------------- output */

void tenon_text_write(Schema *s, const char *bytes, size_t count) {
  if (s->room - s->count < count) tenon_text_refuse(s, 0, "it is too large");
  if (s->mistake != NULL) return;
  memcpy(s->rules + s->count, bytes, count);
  s->count += count;
}

void tenon_text_append(Schema *s, const char *text) { tenon_text_write(s, text, strlen(text)); }

static void schema_put_number(Schema *s, uint64_t number) {
  char digits[20];
  size_t at = sizeof digits;
  do digits[--at] = (char)('0' + number % 10);
  while ((number /= 10) > 0);
  tenon_text_write(s, digits + at, sizeof digits - at);
}

void tenon_text_put_name(Schema *s, const char *kind, size_t number) {
  tenon_text_append(s, kind);
  schema_put_number(s, number);
}

void tenon_text_put_hexadecimal(Schema *s, uint32_t number, uint32_t digits) {
  while (digits-- > 0) tenon_text_write(s, &"0123456789abcdef"[number >> 4 * digits & 15], 1);
}

void tenon_text_put_plain(Schema *s, int rule) {
  tenon_text_append(s, schema_text_of(schema_plain, 2 * rule));
  s->plain |= (uint64_t)1 << rule;
}

/* A character of a string, as JSON has it, within a literal. */
static void schema_put_character(Schema *s, uint32_t point) {
  static const char signs[] = "bfnrt", meanings[] = "\b\f\n\r\t";
  uint8_t bytes[4];
  int sign = 0;
  while (signs[sign] != 0 && (uint32_t)meanings[sign] != point) sign++;
  if (point == '"' || point == '\\') {
    tenon_text_append(s, "\\\\\\");
    tenon_text_write(s, &"\\\""[point == '"'], 1);
  } else if (signs[sign] != 0) {
    tenon_text_append(s, "\\\\");
    tenon_text_write(s, &signs[sign], 1);
  } else if (point < ' ' || point == 0x7f) {
    tenon_text_append(s, "\\\\u");
    tenon_text_put_hexadecimal(s, point, 4);
  } else {
    tenon_text_write(s, (const char *)bytes, tenon_text_utf8(point, bytes));
  }
}

/* A literal of a value and what follows it. */
static void schema_put_value(Schema *s, size_t at, const char *end) {
  const size_t behind = schema_after(s, at);
  tenon_text_append(s, "\"");
  while (at < behind) {
    const int c = s->s[at++];
    if (!is_blank(c) && c != '"') tenon_text_write(s, (const char *)&s->s[at - 1], 1);
    if (c != '"') continue;
    tenon_text_append(s, "\\\"");
    for (uint32_t point; (point = tenon_text_character(s, &at)) != SCHEMA_STRING_END;) schema_put_character(s, point);
    tenon_text_append(s, "\\\"");
    at++;
  }
  tenon_text_append(s, end);
  tenon_text_append(s, "\"");
}

/* The name of the rule of a schema. */
static void schema_put_rule(Schema *s, size_t at) {
  s->wanted[at / 8] |= (uint8_t)(1 << at % 8);
  tenon_text_put_name(s, "s", at);
}

/* The same within another schema, where 0 stands for any value. */
static void schema_put_part(Schema *s, size_t at) {
  if (at == 0) tenon_text_put_plain(s, RULE_VALUE);
  else schema_put_rule(s, at);
}

void tenon_text_put_times(Schema *s, uint32_t least, int64_t most) {
  tenon_text_put_name(s, "{", least);
  tenon_text_append(s, ",");
  if (most >= 0) schema_put_number(s, (uint64_t)most);
  tenon_text_append(s, "}");
}

/* ------------------------------------------------------------------------------------------------------------- values */

static int schema_expect(Schema *s, size_t at, int first) {
  return schema_byte(s, at) == first || tenon_text_refuse(s, at, "a value of another type is expected here");
}

static int schema_no_values(Schema *s, size_t at) { return tenon_text_refuse(s, at, "the schema has no values"); }

/* A number of characters or items; `usual` where none is given. */
static int64_t schema_times(Schema *s, size_t at, int64_t usual) {
  int64_t number = 0;
  if (at == 0) return usual;
  const size_t end = schema_after(s, at);
  for (size_t i = at; i < end; i++) {
    if (s->s[i] < '0' || s->s[i] > '9') return tenon_text_refuse(s, at, "a whole number is expected here");
    if ((number = 10 * number + (s->s[i] - '0')) > SCHEMA_TIMES) return tenon_text_refuse(s, at, "the number is above 2000");
  }
  return number;
}

/* The type of this name; 0 if there is none. */
static uint32_t schema_type(const Schema *s, size_t at) {
  for (int i = 0; i <= RULE_INTEGER; i++)
    if (schema_is(s, at, schema_text_of(schema_plain, 2 * i))) return 1u << i;
  return 0;
}

/* The types of a value: an integer is a number, too. */
static uint32_t schema_types_of(const Schema *s, size_t at) {
  switch (schema_byte(s, at)) {
    case '{': return SCHEMA_OBJECT;
    case '[': return SCHEMA_ARRAY;
    case '"': return SCHEMA_STRING;
    case 't': case 'f': return SCHEMA_BOOLEAN;
    case 'n': return SCHEMA_NULL;
    default: break;
  }
  const size_t end = schema_after(s, at);
  size_t i = schema_digits(s, at + (s->s[at] == '-'));
  for (i += schema_byte(s, i) == '.'; i < end && s->s[i] == '0'; i++) continue;
  return i == end ? SCHEMA_NUMBER | SCHEMA_INTEGER : SCHEMA_NUMBER;
}

static void schema_constants(Schema *s, size_t start, const size_t *found, uint32_t types) {
  size_t at = found[WORD_ENUM], value = found[WORD_CONST];
  int ways = 0;
  if (value == 0 && !schema_expect(s, at, '[')) return;
  for (int more = 1; more && (value != 0 || schema_next(s, &at, NULL, &value)); value = 0) {
    more = found[WORD_CONST] == 0;
    if (!(schema_types_of(s, value) & types)) continue;
    if (ways++ > 0) tenon_text_append(s, " | ");
    schema_put_value(s, value, "");
  }
  if (ways == 0) schema_no_values(s, start);
}

/* ------------------------------------------------------------------------------------------------------------ numbers */

typedef struct {
  Schema *s;
  const char *sign;
  int ways;
} SchemaDigits;

/* A way: some digits and then `any` others, any one from `first` to `last` being the first of these. */
static void schema_way(SchemaDigits *d, const char *digits, size_t count, char first, char last, size_t any) {
  Schema *s = d->s;
  if (d->ways++ > 0) tenon_text_append(s, " | ");
  tenon_text_append(s, d->sign);
  if (count > 0) {
    tenon_text_append(s, " \"");
    tenon_text_write(s, digits, count);
    tenon_text_append(s, "\"");
  }
  if (first != 0) {
    tenon_text_append(s, " [");
    tenon_text_write(s, &first, 1);
    tenon_text_append(s, "-");
    tenon_text_write(s, &last, 1);
    tenon_text_append(s, "]");
  }
  if (any > 0) {
    tenon_text_put_name(s, " [0-9]{", any);
    tenon_text_append(s, "}");
  }
}

/* The numbers between two of as many digits, whose first `at` are the same. */
static void schema_same_length(SchemaDigits *d, const char *low, const char *high, size_t count, size_t at) {
  char zeros[SCHEMA_DIGITS], nines[SCHEMA_DIGITS];
  size_t i = at;
  while (i < count && low[i] == '0' && high[i] == '9') i++;
  if (i == count) {
    schema_way(d, low, at, 0, 0, count - at);
    return;
  }
  if (low[at] == high[at]) {
    schema_same_length(d, low, high, count, at + 1);
    return;
  }
  memcpy(nines, low, count);
  memcpy(zeros, high, count);
  memset(nines + at + 1, '9', count - at - 1);
  memset(zeros + at + 1, '0', count - at - 1);
  schema_same_length(d, low, nines, count, at + 1);
  if (high[at] - low[at] > 1) schema_way(d, low, at, (char)(low[at] + 1), (char)(high[at] - 1), count - at - 1);
  schema_same_length(d, zeros, high, count, at + 1);
}

static void schema_decimal(int64_t number, size_t count, char *digits) {
  for (; count-- > 0; number /= 10) digits[count] = (char)('0' + number % 10);
}

/* The numbers from `least` to `most` (below 0: without end). */
static void schema_range(SchemaDigits *d, int64_t least, int64_t most) {
  char low[SCHEMA_DIGITS], high[SCHEMA_DIGITS];
  int64_t first = 0, next = 10; /* the numbers of `count` digits */
  for (size_t count = 1; count < SCHEMA_DIGITS; count++, first = next, next *= 10) {
    if (least >= next) continue;
    if (most >= 0 && most < first) return;
    schema_decimal(least > first ? least : first, count, low);
    schema_decimal(most >= 0 && most < next ? most : next - 1, count, high);
    schema_same_length(d, low, high, count, 0);
    if (most >= 0) continue;
    schema_way(d, "", 0, '1', '9', 0);
    tenon_text_put_name(d->s, " [0-9]{", count);
    tenon_text_append(d->s, ",}");
    return;
  }
}

/* A limit of integers: the number, or the next one in the direction `up` or down. */
static int64_t schema_limit(Schema *s, size_t at, int up) {
  const int is_negative = schema_byte(s, at) == '-';
  const size_t start = at + (size_t)is_negative, end = schema_after(s, at);
  size_t i = schema_digits(s, start);
  int64_t number = 0;
  int is_broken = 0;
  if (i == start || i - start > SCHEMA_DIGITS - 2)
    return tenon_text_refuse(s, at, "a number of at most 16 digits is expected here");
  for (size_t digit = start; digit < i; digit++) number = 10 * number + (s->s[digit] - '0');
  for (i += schema_byte(s, i) == '.'; i < end; i++) {
    if (s->s[i] < '0' || s->s[i] > '9') return tenon_text_refuse(s, at, "a limit is written without an exponent");
    is_broken |= s->s[i] != '0';
  }
  number += is_broken && up != is_negative;
  return is_negative ? -number : number;
}

static void schema_integer(Schema *s, size_t start, const size_t *found) {
  const size_t minimum = found[WORD_MINIMUM], maximum = found[WORD_MAXIMUM], above = found[WORD_ABOVE], below = found[WORD_BELOW];
  int64_t low = INT64_MIN, high = INT64_MAX, limit;
  if (minimum != 0) low = schema_limit(s, minimum, 1);
  if (maximum != 0) high = schema_limit(s, maximum, 0);
  if (above != 0 && (limit = schema_limit(s, above, 0) + 1) > low) low = limit;
  if (below != 0 && (limit = schema_limit(s, below, 1) - 1) < high) high = limit;
  SchemaDigits d = {s, "\"-\"", 0};
  const int has_low = low != INT64_MIN, has_high = high != INT64_MAX;
  /* as in Python, "-0" is one of the numbers between two limits that are on both sides of it */
  const int64_t first = has_high && high < -1 ? -high : has_low && has_high && high >= 0 ? 0 : 1;
  if (low < 0 && (!has_low || !has_high || low <= high)) schema_range(&d, first, has_low ? -low : -1);
  d.sign = "";
  if (high >= 0 && (!has_high || low <= high)) schema_range(&d, low > 0 ? low : 0, has_high ? high : -1);
  if (d.ways == 0) schema_no_values(s, start);
}

/* ---------------------------------------------------------------------------------------------------- arrays, strings */

static void schema_array(Schema *s, size_t start, const size_t *found) {
  const int64_t least = schema_times(s, found[WORD_MIN_ITEMS], 0), limit = schema_times(s, found[WORD_MAX_ITEMS], -1);
  const size_t items = found[WORD_ITEMS], first = found[WORD_PREFIX_ITEMS];
  size_t at = first, value;
  int64_t count = 0;
  if (first != 0 && !schema_expect(s, first, '[')) return;
  tenon_text_append(s, "\"[\"");
  for (; first != 0 && count != limit && schema_next(s, &at, NULL, &value); count++) {
    tenon_text_append(s, count < least ? "" : " (");
    tenon_text_append(s, count > 0 ? " \",\" " : " ");
    schema_put_part(s, value);
  }
  const int has_rest = schema_byte(s, items) != 'f' || items == 0;
  if ((limit >= 0 && limit < least) || ((!has_rest || limit == count) && least > count)) schema_no_values(s, start);
  if (has_rest && limit != count) {
    const uint32_t more = (uint32_t)(least > count ? least - count : 0);
    if (count == 0) {
      tenon_text_append(s, least == 0 ? " (" : " ");
      schema_put_part(s, items);
    }
    tenon_text_append(s, " (\",\" ");
    schema_put_part(s, items);
    tenon_text_append(s, ")");
    tenon_text_put_times(s, more - (count == 0 && more > 0), limit < 0 ? -1 : limit - count - (count == 0));
    if (count == 0 && least == 0) tenon_text_append(s, ")?");
  }
  for (; count > 0; count--) tenon_text_append(s, count - 1 < least ? "" : ")?");
  tenon_text_append(s, " \"]\"");
}

static void schema_format(Schema *s, size_t at, int is_limited) {
  int rule = RULE_DATE;
  while (rule < RULE_HELPERS && !schema_is(s, at, schema_text_of(schema_plain, 2 * rule))) rule++;
  if (rule == RULE_HELPERS) tenon_text_refuse(s, at, "the format is not supported");
  else if (is_limited) tenon_text_refuse(s, at, "other keywords beside format are not supported");
  else tenon_text_put_plain(s, rule);
}

static void schema_text(Schema *s, size_t start, const size_t *found) {
  const int64_t least = schema_times(s, found[WORD_MIN_LENGTH], 0), most = schema_times(s, found[WORD_MAX_LENGTH], -1);
  const size_t pattern = found[WORD_PATTERN], format = found[WORD_FORMAT];
  if (most >= 0 && most < least) schema_no_values(s, start);
  tenon_text_append(s, "\"\\\"\" (");
  if (format != 0) {
    schema_format(s, format, least > 0 || most >= 0 || pattern != 0);
  } else if (pattern != 0) {
    if (schema_expect(s, pattern, '"')) tenon_text_pattern(s, pattern, least, most);
  } else {
    tenon_text_put_plain(s, RULE_CHAR);
    tenon_text_put_times(s, (uint32_t)least, most);
  }
  tenon_text_append(s, ") \"\\\"\"");
}

/* ------------------------------------------------------------------------------------------------------------ objects */

static int is_open(const Schema *s, const size_t *found) {
  return found[WORD_ADDITIONAL] == 0 || schema_byte(s, found[WORD_ADDITIONAL]) != 'f';
}

static SchemaItem *schema_item(const Schema *s, size_t name) {
  for (uint32_t i = 0; i < s->item_count; i++)
    if (schema_same(s, s->items[i].name, name)) return &s->items[i];
  return NULL;
}

static void schema_add_item(Schema *s, size_t name, size_t schema, int is_required) {
  const SchemaItem item = {(uint32_t)name, (uint32_t)schema, (uint32_t)is_required};
  s->items[s->item_count++] = item;
}

/* Find the properties of an object: those with schemas, and others that are required. */
static int schema_items(Schema *s, const size_t *found) {
  size_t at = found[WORD_PROPERTIES], key, value;
  s->item_count = 0;
  if (at != 0 && !schema_expect(s, at, '{')) return 0;
  while (at != 0 && schema_next(s, &at, &key, &value)) {
    if (schema_item(s, key) != NULL) return tenon_text_refuse(s, key, "the property is there twice");
    schema_add_item(s, key, value, 0);
  }
  at = found[WORD_REQUIRED];
  if (at != 0 && !schema_expect(s, at, '[')) return 0;
  while (at != 0 && schema_next(s, &at, NULL, &value)) {
    if (!schema_expect(s, value, '"')) return 0;
    SchemaItem *item = schema_item(s, value);
    if (item != NULL) item->is_required = 1;
    else if (!is_open(s, found)) return tenon_text_refuse(s, value, "the property is required and not allowed");
    else schema_add_item(s, value, found[WORD_ADDITIONAL], 1);
  }
  return 1;
}

static void schema_put_pair(Schema *s, const SchemaItem *item) {
  schema_put_value(s, item->name, ":");
  tenon_text_append(s, " ");
  schema_put_part(s, item->schema);
}

/* The state behind the items before number `i`. */
static void schema_put_tail(Schema *s, size_t start, const size_t *found, uint32_t i) {
  if (i < s->item_count) tenon_text_put_name(s, " t", s->items[i].name);
  else if (is_open(s, found)) tenon_text_put_name(s, " e", start);
}

static void schema_object(Schema *s, size_t start, const size_t *found) {
  uint32_t i = 0;
  if (!schema_items(s, found)) return;
  if (s->item_count == 0 && !is_open(s, found)) {
    tenon_text_append(s, "\"{\" \"}\"");
    return;
  }
  tenon_text_append(s, "\"{\" (");
  for (int is_last = 0; i < s->item_count && !is_last; i++) {
    if (i > 0) tenon_text_append(s, " | ");
    schema_put_pair(s, &s->items[i]);
    schema_put_tail(s, start, found, i + 1);
    is_last = (int)s->items[i].is_required;
  }
  const int is_required = i > 0 && s->items[i - 1].is_required;
  if (!is_required && is_open(s, found)) {
    tenon_text_put_name(s, i > 0 ? " | o" : "o", start);
    tenon_text_append(s, " \":\" ");
    schema_put_part(s, found[WORD_ADDITIONAL]);
    tenon_text_put_name(s, " e", start);
  }
  tenon_text_append(s, is_required ? ") \"}\"" : ")? \"}\"");
}

/* The first item whose name begins with the first `count` characters of that of number `i`, and whose next character is
   that of number `i`, too, where `is_next`. */
static uint32_t schema_first_like(const Schema *s, uint32_t i, uint32_t count, int is_next) {
  uint32_t next[2], first = 0;
  while (!schema_alike(s, s->items[first].name, s->items[i].name, count, next) || (is_next && next[0] != next[1])) first++;
  return first;
}

static void schema_put_key_name(Schema *s, uint32_t i, uint32_t count) {
  tenon_text_put_name(s, "k", s->items[i].name);
  tenon_text_put_name(s, "-", count);
}

/* The rule of what may follow the first `count` characters of a name, so that it is none of the names of items. */
static void schema_key_rule(Schema *s, uint32_t i, uint32_t count) {
  uint32_t next[2];
  uint8_t bytes[4];
  int is_name = 0;
  schema_put_key_name(s, i, count);
  tenon_text_append(s, " ::= (" SCHEMA_CLASS);
  for (int pass = 0; pass < 2; pass++) {
    for (uint32_t j = i; j < s->item_count; j++) {
      if (!schema_alike(s, s->items[i].name, s->items[j].name, count, next)) continue;
      if (next[1] == SCHEMA_STRING_END) is_name = 1;
      else if (schema_first_like(s, j, count, 1) == j) {
        tenon_text_append(s, pass == 0 ? "\\U" : " | \"");
        if (pass == 0) tenon_text_put_hexadecimal(s, next[1], 8);
        else tenon_text_write(s, (const char *)bytes, tenon_text_utf8(next[1], bytes));
        tenon_text_append(s, pass == 0 ? "" : "\" ");
        if (pass == 1) schema_put_key_name(s, j, count + 1);
      }
    }
    if (pass > 0) continue;
    tenon_text_append(s, "] | ");
    tenon_text_put_plain(s, RULE_ESCAPE);
    tenon_text_append(s, ") ");
    tenon_text_put_plain(s, RULE_REST);
  }
  tenon_text_append(s, is_name ? "\n" : " | \"\\\"\"\n");
}

/* The rules of names that no item has. */
static void schema_other_names(Schema *s) {
  schema_key_rule(s, 0, 0);
  for (uint32_t i = 0; i < s->item_count && s->mistake == NULL; i++) {
    size_t at = s->items[i].name + 1u;
    uint32_t count = 0;
    for (uint32_t point; (point = tenon_text_character(s, &at)) != SCHEMA_STRING_END; count++) {
      if (point < ' ' || point == '"' || point == '\\' || point == 0x7f) {
        tenon_text_refuse(s, s->items[i].name, "more properties beside one with an escaped character are not supported");
        return;
      }
      if (schema_first_like(s, i, count + 1, 0) == i) schema_key_rule(s, i, count + 1);
    }
  }
}

/* The rules that the one of an object mentions. */
static void schema_object_rules(Schema *s, size_t start, const size_t *found) {
  for (uint32_t i = 1; i < s->item_count; i++) {
    tenon_text_put_name(s, "t", s->items[i].name);
    tenon_text_append(s, s->items[i].is_required ? " ::= \",\" " : " ::= (\",\" ");
    schema_put_pair(s, &s->items[i]);
    if (!s->items[i].is_required) tenon_text_append(s, ")?");
    schema_put_tail(s, start, found, i + 1);
    tenon_text_append(s, "\n");
  }
  if (!is_open(s, found)) return;
  tenon_text_put_name(s, "e", start);
  tenon_text_put_name(s, " ::= (\",\" o", start);
  tenon_text_append(s, " \":\" ");
  schema_put_part(s, found[WORD_ADDITIONAL]);
  tenon_text_put_name(s, ")*\no", start);
  tenon_text_append(s, " ::= ");
  if (s->item_count == 0) {
    tenon_text_put_plain(s, RULE_STRING);
    tenon_text_append(s, "\n");
    return;
  }
  tenon_text_append(s, "\"\\\"\" ");
  schema_put_key_name(s, 0, 0);
  tenon_text_append(s, "\n");
  schema_other_names(s);
}

/* ------------------------------------------------------------------------------------------------------------ schemas */

/* The place that a reference names; 0 where there is none. */
static size_t schema_target(Schema *s, size_t reference, size_t root) {
  size_t at = reference + 1, target = root;
  if (!schema_expect(s, reference, '"')) return 0;
  if (tenon_text_character(s, &at) != '#') return (size_t)tenon_text_refuse(s, reference, "the reference is to another file");
  uint32_t point = tenon_text_character(s, &at);
  if (point != SCHEMA_STRING_END && point != '/') return (size_t)tenon_text_refuse(s, reference, "the reference is not to a path");
  while (point == '/') {
    const int is_list = schema_byte(s, target) == '[';
    const size_t name = at;
    size_t inside = target, key = 0, value = 0, number = 0, match = 0;
    if (!is_list && schema_byte(s, target) != '{') return (size_t)tenon_text_refuse(s, reference, "nothing is where the reference is to");
    while (schema_next(s, &inside, is_list ? NULL : &key, &value)) {
      size_t own = key + 1, index = 0;
      uint32_t letter = SCHEMA_STRING_END;
      int is_alike = 1;
      for (at = name; (point = tenon_text_character(s, &at)) != SCHEMA_STRING_END && point != '/';) {
        if (point == '~') point = tenon_text_character(s, &at) == '1' ? '/' : '~';
        if (is_list) is_alike &= point >= '0' && point <= '9' && (index = 10 * index + point - '0') <= s->length;
        else is_alike &= is_alike && (letter = tenon_text_character(s, &own)) == point;
      }
      if (is_alike && (is_list ? index == number && at > name : tenon_text_character(s, &own) == SCHEMA_STRING_END)) match = value;
      number++;
    }
    if (match == 0) return (size_t)tenon_text_refuse(s, reference, "nothing is where the reference is to");
    target = match;
  }
  return target;
}

/* Ways that are schemas of a list. */
static void schema_any(Schema *s, size_t list) {
  size_t value;
  int ways = 0;
  if (!schema_expect(s, list, '[')) return;
  for (size_t at = list; schema_next(s, &at, NULL, &value); ways++) {
    if (ways > 0) tenon_text_append(s, " | ");
    schema_put_part(s, value);
  }
  if (ways == 0) schema_no_values(s, list);
}

/* Find the keywords of a schema, and where each one's name is. */
static int schema_find(Schema *s, size_t at, size_t found[WORDS], size_t names[WORDS]) {
  size_t key, value;
  while (schema_next(s, &at, &key, &value)) {
    size_t i = 0;
    const char *word = schema_words;
    for (; *word != 0 && !schema_is(s, key, word); i++) word += strlen(word) + 1;
    if (*word == 0) return tenon_text_refuse(s, key, "the keyword is not supported");
    if (i >= WORDS) continue;
    found[i] = value;
    names[i] = key;
  }
  return 1;
}

/* Refuse keywords that are not of some kinds. */
static int schema_only(Schema *s, const size_t names[WORDS], uint32_t kinds, const char *mistake) {
  for (int i = 0; i < WORDS; i++)
    if (names[i] != 0 && !(schema_kinds[i] & kinds)) return tenon_text_refuse(s, names[i], mistake);
  return 1;
}

static uint32_t schema_types(Schema *s, size_t given) {
  size_t value = given;
  uint32_t types = 0;
  if (schema_byte(s, given) != '[') types = schema_type(s, given);
  else
    for (size_t at = given; schema_next(s, &at, NULL, &value);) {
      const uint32_t type = schema_type(s, value);
      if (type == 0) return (uint32_t)tenon_text_refuse(s, value, "JSON has no such type");
      types |= type;
    }
  if (types == 0) tenon_text_refuse(s, given, "JSON has no such type");
  return types;
}

/* The values of types, each with its own keywords. */
static void schema_typed(Schema *s, size_t start, const size_t found[WORDS], uint32_t types) {
  uint32_t limited = 0;
  int ways = 0;
  for (int i = 0; i < WORDS; i++)
    if (found[i] != 0) limited |= schema_kinds[i];
  for (int rule = RULE_OBJECT; rule <= RULE_INTEGER; rule++) {
    const uint32_t type = 1u << rule;
    if (!(types & type)) continue;
    if (ways++ > 0) tenon_text_append(s, " | ");
    if (!(limited & type)) tenon_text_put_plain(s, rule);
    else if (type == SCHEMA_OBJECT) schema_object(s, start, found);
    else if (type == SCHEMA_ARRAY) schema_array(s, start, found);
    else if (type == SCHEMA_STRING) schema_text(s, start, found);
    else schema_integer(s, start, found);
  }
  tenon_text_append(s, "\n");
  if (types & limited & SCHEMA_OBJECT) schema_object_rules(s, start, found);
}

/* Write what stands behind the name of the rule of a schema, and the rules that only this one mentions. */
static int schema_values(Schema *s, size_t at, size_t root) {
  size_t found[WORDS] = {0}, names[WORDS] = {0};
  const int first = schema_byte(s, at);
  if (first == 't') tenon_text_put_plain(s, RULE_VALUE);
  if (first == 't') return tenon_text_append(s, "\n"), 1;
  if (first == 'f') return schema_no_values(s, at);
  if (!schema_expect(s, at, '{') || !schema_find(s, at, found, names)) return 0;
  for (int i = WORD_REF; i <= WORD_ALL_OF; i++) {
    if (found[i] == 0) continue;
    names[i] = 0;
    if (!schema_only(s, names, 0, "the keyword stands beside one that stands alone")) return 0;
    const size_t target = i == WORD_REF ? schema_target(s, found[i], root) : 0;
    if (i != WORD_REF) schema_any(s, found[i]);
    else if (s->mistake == NULL) schema_put_rule(s, target);
    size_t list = found[i], value;
    if (i == WORD_ALL_OF && s->mistake == NULL && schema_next(s, &list, NULL, &value) && schema_next(s, &list, NULL, &value))
      return tenon_text_refuse(s, value, "allOf with several schemas is not supported");
    return tenon_text_append(s, "\n"), 1;
  }
  const uint32_t types = found[WORD_TYPE] != 0 ? schema_types(s, found[WORD_TYPE]) : 0;
  if (found[WORD_ENUM] != 0 || found[WORD_CONST] != 0) {
    if (!schema_only(s, names, SCHEMA_TYPE | SCHEMA_VALUES, "the keyword stands beside values")) return 0;
    schema_constants(s, at, found, found[WORD_TYPE] != 0 ? types : SCHEMA_ALL);
    return tenon_text_append(s, "\n"), 1;
  }
  if (!schema_only(s, names, SCHEMA_TYPE | (found[WORD_TYPE] != 0 ? types : SCHEMA_ALL), "the keyword is not one of the type"))
    return 0;
  schema_typed(s, at, found, found[WORD_TYPE] != 0 ? types : SCHEMA_ALL);
  return 1;
}

static int is_plain_letter(int c) { return is_scalar(c) && ((c | 32) >= 'a' ? (c | 32) <= 'z' : c == '-' || (c >= '0' && c <= '9')); }

/* The rules of JSON that a text mentions. */
static uint64_t schema_mentioned(const char *text) {
  uint64_t mentioned = 0;
  while (*text != 0) {
    size_t length = 0;
    while (is_plain_letter(text[length])) length++;
    const char *name = schema_plain;
    for (int rule = 0; length > 0 && *name != 0; rule++, name = schema_text_of(name, 2))
      if (strlen(name) == length && memcmp(name, text, length) == 0) mentioned |= (uint64_t)1 << rule;
    text += length > 0 ? length : 1;
  }
  return mentioned;
}

static void schema_plain_rules(Schema *s) {
  for (uint64_t written = 0; written != s->plain;)
    for (int i = 0; i < 64; i++) {
      if (!((s->plain & ~written) >> i & 1)) continue;
      const char *name = schema_text_of(schema_plain, 2 * i), *rule = schema_text_of(name, 1);
      written |= (uint64_t)1 << i;
      s->plain |= schema_mentioned(rule);
      tenon_text_append(s, name);
      tenon_text_append(s, " ::= ");
      tenon_text_append(s, rule);
      tenon_text_append(s, "\n");
    }
}

static void schema_translate(Schema *s) {
  const size_t root = schema_blanks(s, 0), end = schema_check(s, root, 0);
  if (end != 0 && schema_blanks(s, end) != s->length) tenon_text_refuse(s, end, "it is no JSON from here");
  if (s->mistake != NULL) return;
  tenon_text_put_name(s, "root ::= s", root);
  tenon_text_append(s, "\n");
  s->wanted[root / 8] |= (uint8_t)(1 << root % 8);
  for (int again = 1; again && s->mistake == NULL;) {
    again = 0;
    for (size_t at = 0; at < s->length && s->mistake == NULL; at++) {
      const uint8_t bit = (uint8_t)(1 << at % 8);
      if (!(s->wanted[at / 8] & bit) || (s->written[at / 8] & bit)) continue;
      s->written[at / 8] |= bit;
      tenon_text_put_name(s, "s", at);
      tenon_text_append(s, " ::= ");
      again = schema_values(s, at, root);
    }
  }
  schema_plain_rules(s);
}

/* -------------------------------------------------------------------------------------------------------------- memory */

int tenon_text_is_schema(const char *source, size_t length) {
  size_t at = 0;
  while (at < length && is_blank((uint8_t)source[at])) at++;
  return at < length && source[at] == '{';
}

size_t tenon_text_schema_room(size_t length) { return length < 3072 ? 64 * length + 4096 : 64 * 3072 + 4096; }

static size_t schema_bits(size_t length) { return (length / 8 + 8) / 8 * 8; }

size_t tenon_text_schema_memory(size_t length) {
  return tenon_text_schema_room(length) + 2 * schema_bits(length) + (length / 3 + 2) * sizeof(SchemaItem) / 8 * 8 + 8;
}

size_t tenon_text_schema_rules(const char *schema, size_t length, void *memory, const char **mistake, size_t *at) {
  Schema s = {(const uint8_t *)schema, length, 0, tenon_text_schema_room(length), 0, memory, NULL, NULL, NULL, NULL, 0, 0};
  s.wanted = (uint8_t *)memory + s.room;
  s.written = s.wanted + schema_bits(length);
  s.items = (SchemaItem *)(void *)(s.written + schema_bits(length));
  memset(s.wanted, 0, 2 * schema_bits(length));
  if (length > UINT32_MAX / 2) tenon_text_refuse(&s, 0, "it is too large");
  else schema_translate(&s);
  *mistake = s.mistake;
  *at = s.at;
  return s.mistake == NULL ? s.count : 0;
}
