/* The operators of Tengine and their parameters. */

#ifndef TENON_TENGINE_OPERATORS_H
#define TENON_TENGINE_OPERATORS_H

#include <stdint.h>

typedef struct {
  int type;           /* the number in tmfiles */
  const char *name;   /* in Tengine's spelling */
  const char *fields; /* "axis=1 slope:f points:I": name, kind (nothing: int, f: float, I, F, A: lists), and the
                         default, of floats as the int that has the same bits */
} Operator;

typedef struct {
  char name[32], kind; /* i f I F A */
  int32_t initial;
} Field;

enum { CONST_TYPE = 4, INPUT_TYPE = 12 };

const Operator *tg_operator(int type); /* NULL if it is unknown */
const Operator *tg_operator_named(const char *name);
int tg_next_field(const char **fields, Field *field); /* 0 at the end */

#endif
