/* The operators of Tengine, and the names of their parameters. */

#include "operators.h"

#include <stdlib.h>
#include <string.h>

#define OPERATOR_ROW(type, name, fields) type,
static const int16_t types[] = {
    CONST_TYPE, INPUT_TYPE,
#include "operator_rows.h"
};
#undef OPERATOR_ROW

/* The name of each, and its fields. */
#define OPERATOR_ROW(type, name, fields) name "\0" fields "\0"
static const char texts[] = "Const\0" "\0" "InputOp\0" "\0"
#include "operator_rows.h"
    ;
#undef OPERATOR_ROW

enum { OPERATORS = sizeof types / sizeof *types };

static Operator operators[OPERATORS];

/* When the library is loaded: a table of pointers in its file would take four times as much, for relocations. */
__attribute__((constructor)) static void fill_operators(void) {
  const char *at = texts;
  for (int i = 0; i < OPERATORS; i++) {
    operators[i].type = types[i];
    operators[i].name = at;
    at += strlen(at) + 1;
    operators[i].fields = at;
    at += strlen(at) + 1;
  }
}

const Operator *tg_operator(int type) {
  for (int i = 0; i < OPERATORS; i++)
    if (operators[i].type == type) return &operators[i];
  return NULL;
}

static int lower(char letter) { return letter >= 'A' && letter <= 'Z' ? letter - 'A' + 'a' : letter; }

/* Whether two names are the same but for case and underscores. */
static int is_same_name(const char *a, const char *b) {
  for (;; a++, b++) {
    while (*a == '_') a++;
    while (*b == '_') b++;
    if (lower(*a) != lower(*b)) return 0;
    if (*a == 0) return 1;
  }
}

const Operator *tg_operator_named(const char *name) {
  if (is_same_name(name, "BatchNormalization")) name = "BatchNormalize"; /* tmfiles have the longer name */
  for (int i = 0; i < OPERATORS; i++)
    if (is_same_name(operators[i].name, name)) return &operators[i];
  return NULL;
}

int tg_next_field(const char **fields, Field *field) {
  const char *at = *fields;
  while (*at == ' ') at++;
  if (*at == 0) return 0;
  const size_t length = strcspn(at, " "), name = strcspn(at, " :=");
  const size_t kept = name < sizeof field->name ? name : sizeof field->name - 1;
  memcpy(field->name, at, kept);
  field->name[kept] = 0;
  field->kind = at[name] == ':' ? at[name + 1] : 'i';
  const char *equals = memchr(at, '=', length);
  field->initial = 0;
  if (equals != NULL) field->initial = (int32_t)strtol(equals + 1, NULL, 10);
  *fields = at + length;
  return 1;
}
