/* Writing grammars in GBNF from JSON schemas, whose parts text_schema.c and text_pattern.c translate. */

#ifndef TENON_TEXT_RULES_H
#define TENON_TEXT_RULES_H

#include <stddef.h>
#include <stdint.h>

/* The state of a string behind its last character. */
enum { SCHEMA_STRING_END = 0x110000 };

/* The most characters or items of a limited number. */
enum { SCHEMA_TIMES = 2000 };

/* The rules of JSON, without white space, and those of strings with a format; types are in the order of their bits. */
enum {
  RULE_OBJECT, RULE_ARRAY, RULE_STRING, RULE_NUMBER, RULE_BOOLEAN, RULE_NULL, RULE_INTEGER, RULE_VALUE, RULE_CHAR,
  RULE_ESCAPE, RULE_REST, RULE_DOT, RULE_DATE, RULE_TIME, RULE_DATE_TIME, RULE_DURATION, RULE_EMAIL, RULE_HOSTNAME,
  RULE_IPV4, RULE_IPV6, RULE_UUID, RULE_URI, RULE_UNKNOWN, RULE_HELPERS
};

/* A property: the places of its name and of its schema (0: any value). */
typedef struct {
  uint32_t name, schema, is_required;
} SchemaItem;

typedef struct {
  const uint8_t *s;
  size_t length, count, room, at; /* of the schema and the rules; where the mistake is */
  char *rules;
  const char *mistake;
  uint8_t *wanted, *written;
  SchemaItem *items;
  uint64_t plain; /* the rules of JSON that are mentioned */
  uint32_t item_count;
} Schema;

/* Keep the first mistake; 0. */
int tenon_text_refuse(Schema *schema, size_t at, const char *mistake);

/* The next character of a string, of which `*at` is behind the quote; SCHEMA_STRING_END at its end, or where it is none. */
uint32_t tenon_text_character(const Schema *schema, size_t *at);

/* Write bytes, a text, a name of a kind and a number, a number of so many hexadecimal digits, the name of a rule of JSON. */
void tenon_text_write(Schema *schema, const char *bytes, size_t count);
void tenon_text_append(Schema *schema, const char *text);
void tenon_text_put_name(Schema *schema, const char *kind, size_t number);
void tenon_text_put_hexadecimal(Schema *schema, uint32_t number, uint32_t digits);
void tenon_text_put_plain(Schema *schema, int rule);

/* Write an expression for `least` to `most` repetitions (below 0: without end). */
void tenon_text_put_times(Schema *schema, uint32_t least, int64_t most);

/* Write an expression of the characters, as JSON has them, of strings in which the regular expression in the string at byte
   `pattern` is found; of these, those of `least` to `most` characters (below 0: of any number). */
void tenon_text_pattern(Schema *schema, size_t pattern, int64_t least, int64_t most);

#endif
