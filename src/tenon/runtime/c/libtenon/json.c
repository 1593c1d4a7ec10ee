/* A parser of JSON (RFC 8259), with Python's NaN and Infinity, to a tree in a memory pool. */

#include "json.h"

#include <locale.h>
#include <stdlib.h>
#include <string.h>

enum { DEEPEST = 32, LONGEST_NUMBER = 40 };

typedef struct {
  Pool *pool;
  const char *at, *end;
} Parser;

static JsonValue *parse_value(Parser *parser, int depth);

static void skip_blanks(Parser *parser) {
  for (; parser->at < parser->end; parser->at++) {
    const char c = *parser->at;
    if (c != ' ' && c != '\n' && c != '\t' && c != '\r') break;
  }
}

static int take(Parser *parser, const char *word) {
  const size_t length = strlen(word);
  if ((size_t)(parser->end - parser->at) < length || memcmp(parser->at, word, length) != 0) return 0;
  parser->at += length;
  return 1;
}

static int take_letter(Parser *parser, char letter) {
  const int found = parser->at < parser->end && *parser->at == letter;
  parser->at += found;
  return found;
}

static JsonValue *new_value(Parser *parser, JsonKind kind) {
  JsonValue *value = tn_pool_take(parser->pool, sizeof *value);
  if (value != NULL) value->kind = kind;
  return value;
}

static int hex_digits(Parser *parser, uint32_t *code) {
  if (parser->end - parser->at < 4) return 0;
  *code = 0;
  for (int i = 0; i < 4; i++) {
    const char c = *parser->at++;
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
    if (digit < 0) return 0;
    *code = *code << 4 | (uint32_t)digit;
  }
  return 1;
}

static char *put_utf8(char *to, uint32_t code) {
  if (code < 0x80) {
    *to++ = (char)code;
  } else if (code < 0x800) {
    *to++ = (char)(0xc0 | code >> 6);
    *to++ = (char)(0x80 | (code & 63));
  } else if (code < 0x10000) {
    *to++ = (char)(0xe0 | code >> 12);
    *to++ = (char)(0x80 | (code >> 6 & 63));
    *to++ = (char)(0x80 | (code & 63));
  } else {
    *to++ = (char)(0xf0 | code >> 18);
    *to++ = (char)(0x80 | (code >> 12 & 63));
    *to++ = (char)(0x80 | (code >> 6 & 63));
    *to++ = (char)(0x80 | (code & 63));
  }
  return to;
}

static char *put_escape(Parser *parser, char *to) {
  static const char names[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
  if (parser->at == parser->end) return NULL;
  const char c = *parser->at++;
  const char *found = c ? strchr(names, c) : NULL;
  if (found != NULL) {
    *to = meanings[found - names];
    return to + 1;
  }
  uint32_t code, low;
  if (c != 'u' || !hex_digits(parser, &code)) return NULL;
  if (code >= 0xd800 && code < 0xdc00 && take(parser, "\\u")) {
    if (!hex_digits(parser, &low) || low < 0xdc00 || low >= 0xe000) return NULL;
    code = 0x10000 + ((code - 0xd800) << 10 | (low - 0xdc00));
  }
  return put_utf8(to, code);
}

/* The text of a string behind its opening quote: never longer than it is written. */
static const char *parse_text(Parser *parser, size_t *length) {
  const char *close = parser->at;
  while (close < parser->end && *close != '"') close += *close == '\\' ? 2 : 1;
  if (close >= parser->end) return NULL;
  char *text = tn_pool_take(parser->pool, (size_t)(close - parser->at) + 1), *to = text;
  if (text == NULL) return NULL;
  while (parser->at < close) {
    const char c = *parser->at++;
    if ((unsigned char)c < 32) return NULL;
    if (c != '\\') *to++ = c;
    else if ((to = put_escape(parser, to)) == NULL) return NULL;
  }
  if (parser->at != close) return NULL;
  parser->at++;
  *length = (size_t)(to - text);
  return text;
}

/* The fraction of a number, by strtod, which expects the decimal point of the program's locale. */
static int read_fraction(const char *text, size_t length, double *number) {
  char copy[LONGEST_NUMBER + 8];
  const char *point = localeconv()->decimal_point;
  const char *dot = memchr(text, '.', length);
  const size_t before = dot != NULL ? (size_t)(dot - text) : length, wide = dot != NULL ? strlen(point) : 0;
  if (length >= LONGEST_NUMBER || wide > 7) return 0;
  memcpy(copy, text, before);
  if (dot != NULL) {
    memcpy(copy + before, point, wide);
    memcpy(copy + before + wide, dot + 1, length - before - 1);
    length += wide - 1;
  }
  copy[length] = 0;
  char *end;
  *number = strtod(copy, &end);
  return end == copy + length;
}

static int is_in_number(char c) { return (c >= '0' && c <= '9') || c == '-' || c == '+' || c == '.' || c == 'e' || c == 'E'; }

static JsonValue *parse_number(Parser *parser) {
  const char *begin = parser->at;
  while (parser->at < parser->end && is_in_number(*parser->at)) parser->at++;
  const size_t length = (size_t)(parser->at - begin);
  JsonValue *value = new_value(parser, JSON_NUMBER);
  if (value == NULL || length == 0) return NULL;
  const int negative = *begin == '-';
  uint64_t whole = 0;
  size_t digits = 0;
  for (const char *c = begin + negative; c < parser->at && *c >= '0' && *c <= '9' && digits < 18; c++, digits++)
    whole = 10 * whole + (uint64_t)(*c - '0');
  if (digits > 0 && digits + (size_t)negative == length) {
    value->is_integer = 1;
    value->integer = negative ? -(int64_t)whole : (int64_t)whole;
    value->number = (double)value->integer;
    return value;
  }
  return read_fraction(begin, length, &value->number) ? value : NULL;
}

static JsonValue *parse_members(Parser *parser, JsonKind kind, int depth) {
  const char close = kind == JSON_OBJECT ? '}' : ']';
  JsonValue *whole = new_value(parser, kind), **end = whole != NULL ? &whole->first : NULL;
  if (whole == NULL) return NULL;
  skip_blanks(parser);
  if (take_letter(parser, close)) return whole;
  for (;;) {
    const char *key = NULL;
    size_t length;
    skip_blanks(parser);
    if (kind == JSON_OBJECT) {
      if (!take_letter(parser, '"') || (key = parse_text(parser, &length)) == NULL) return NULL;
      skip_blanks(parser);
      if (!take_letter(parser, ':')) return NULL;
    }
    JsonValue *member = parse_value(parser, depth + 1);
    if (member == NULL) return NULL;
    member->key = key;
    *end = member;
    end = &member->next;
    whole->count++;
    skip_blanks(parser);
    if (take_letter(parser, close)) return whole;
    if (!take_letter(parser, ',')) return NULL;
  }
}

static JsonValue *parse_value(Parser *parser, int depth) {
  skip_blanks(parser);
  if (depth > DEEPEST || parser->at == parser->end) return NULL;
  if (take_letter(parser, '{')) return parse_members(parser, JSON_OBJECT, depth);
  if (take_letter(parser, '[')) return parse_members(parser, JSON_ARRAY, depth);
  if (take_letter(parser, '"')) {
    JsonValue *value = new_value(parser, JSON_STRING);
    return value != NULL && (value->text = parse_text(parser, &value->count)) != NULL ? value : NULL;
  }
  if (*parser->at >= '0' && *parser->at <= '9') return parse_number(parser);
  if (take(parser, "null") || take(parser, "NaN") || take(parser, "Infinity") || take(parser, "-Infinity"))
    return new_value(parser, JSON_NULL);
  if (take(parser, "true")) return new_value(parser, JSON_TRUE);
  if (take(parser, "false")) return new_value(parser, JSON_FALSE);
  return parse_number(parser);
}

JsonValue *tn_json_parse(Pool *pool, const char *text, size_t size) {
  Parser parser = {pool, text, text + size};
  JsonValue *value = parse_value(&parser, 0);
  skip_blanks(&parser);
  return parser.at == parser.end ? value : NULL;
}

JsonValue *tn_json_split(Pool *pool, const char *text, size_t size) {
  Parser parser = {pool, text, text + size};
  JsonValue *root = new_value(&parser, JSON_OBJECT), *member = NULL, **end = root != NULL ? &root->first : NULL;
  for (; end != NULL && (parser.at = memchr(parser.at, '\n', (size_t)(parser.end - parser.at))) != NULL;) {
    const char *line = parser.at++;
    const int is_member = take(&parser, " \""), is_end = !is_member && take(&parser, "}");
    size_t length;
    if (!is_member && !is_end) continue;
    if (member != NULL) member->count = (size_t)(line - member->text) - (line[-1] == ',');
    if (is_end) return root;
    const char *key = parse_text(&parser, &length);
    if (key == NULL || !take_letter(&parser, ':') || (member = new_value(&parser, JSON_TEXT)) == NULL) return NULL;
    member->key = key;
    member->text = parser.at;
    *end = member;
    end = &member->next;
  }
  return NULL;
}

const JsonValue *tn_json_get(const JsonValue *object, const char *key) {
  if (object == NULL || object->kind != JSON_OBJECT) return NULL;
  for (const JsonValue *member = object->first; member != NULL; member = member->next)
    if (strcmp(member->key, key) == 0) return member;
  return NULL;
}
