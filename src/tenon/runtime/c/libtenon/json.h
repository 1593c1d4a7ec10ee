/* JSON. */

#ifndef TENON_JSON_H
#define TENON_JSON_H

#include "memory_pool.h"

typedef enum { JSON_NULL, JSON_FALSE, JSON_TRUE, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT, JSON_TEXT } JsonKind;
typedef struct JsonValue JsonValue;
struct JsonValue {
  JsonKind kind;
  int is_integer;
  size_t count; /* elements, or bytes of `text` */
  const char *key, *text; /* of a string, or of JSON that is not parsed */
  int64_t integer;
  double number;
  JsonValue *first, *next;
};
/* NULL if the text is not JSON, or the pool is empty. */
JsonValue *tn_json_parse(Pool *pool, const char *text, size_t size);
/* The same for an object each of whose members begins on a line of its own, behind one blank: these are not parsed but
   JSON_TEXT. */
JsonValue *tn_json_split(Pool *pool, const char *text, size_t size);
const JsonValue *tn_json_get(const JsonValue *object, const char *key); /* NULL if it is not there */

#endif
