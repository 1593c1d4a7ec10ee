/* Grammars that a text follows: which tokens may come next. */

#ifndef TENON_TEXT_GRAMMAR_H
#define TENON_TEXT_GRAMMAR_H

#include "text.h"

/* Results of opening a grammar other than 0. */
enum { TENON_TEXT_BAD_GRAMMAR = -1 };

/* The number of a rule that is not defined, of a state that is not made, and behind the end of a list; the most steps, and
   the most moves that are kept. */
enum { GRAMMAR_NONE = 0xffff, GRAMMAR_MOST_STEPS = 0x7fff, GRAMMAR_MOVES = 1 << 15 };

/* A step of the program that a grammar becomes: a byte from `a` to `b`; going on both behind the step and `a` steps on;
   going on `a` steps on; the rule number `a` and then the next step; the end of a rule; no way on. */
enum { GRAMMAR_BYTE, GRAMMAR_SPLIT, GRAMMAR_JUMP, GRAMMAR_CALL, GRAMMAR_END, GRAMMAR_FAIL };
typedef struct {
  uint16_t a;
  uint8_t op, b;
} GrammarStep;

typedef struct {
  uint32_t name, length; /* in the source */
  uint16_t start;
  uint8_t is_empty, is_safe; /* whether it can be nothing; whether no rule that it can begin with is itself */
} GrammarRule;

/* A step of the program, and the node that follows after the end of its rule; 0: the end of the text. */
typedef struct {
  uint16_t step, parent, next, mark;
} GrammarNode;

/* Where a text may stand: nodes, whose steps are bytes. */
typedef struct {
  uint32_t first;
  uint16_t count, next, moved;
  uint8_t is_end, is_kept;
} GrammarState;

/* A grammar in memory of tenon_text_grammar_memory bytes, and where the text stands in it (`path`[0]). */
typedef struct {
  const TenonText *text;
  const uint8_t *source;
  size_t length, at; /* `at`: where the mistake is */
  const char *mistake;
  GrammarStep *steps;
  GrammarRule *rules;
  GrammarNode *nodes;
  GrammarState *states;
  uint32_t *bits;                 /* of the tokens that may come next */
  uint16_t *moves, *sets, *stack; /* the state after a byte of a class; the nodes of states; nodes to be looked at */
  uint16_t *node_slots, *state_slots, *path;
  uint8_t classes[256];
  uint32_t step_count, step_room, rule_count, rule_room, node_count, node_room, state_count, state_room, set_count,
      set_room, class_count, generation, root, masked; /* the state that `bits` are of, GRAMMAR_NONE: of none */
} TextGrammar;

/* The bytes of memory for a grammar of `length` bytes, or for a JSON schema. */
size_t tenon_text_grammar_memory(const TenonText *text, const char *source, size_t length);

/* The bytes of a character in UTF-8. */
size_t tenon_text_utf8(uint32_t point, uint8_t bytes[4]);

/* Make a program of the source; 0 or TENON_TEXT_BAD_GRAMMAR. */
int tenon_text_grammar_read(TextGrammar *grammar);

/* The step that a jump, or the other way of a split, leads to. */
uint32_t tenon_text_grammar_target(const TextGrammar *grammar, uint32_t step);

/* Read a grammar in GBNF, which has a rule called "root", or a JSON schema (text_schema.h); `memory` is at a multiple of 8.
   Returns 0, or TENON_TEXT_BAD_GRAMMAR; then `mistake` and `at` say what is wrong, and where. */
int tenon_text_grammar_open(TextGrammar *grammar, const TenonText *text, const char *source, size_t length, void *memory);

/* Make the logits [size] of tokens that may not come next minus infinity; the number of those that may. */
size_t tenon_text_grammar_mask(TextGrammar *grammar, float *logits, uint32_t size);

/* Go on by the bytes of a token; whether the text is complete, so that none can follow. */
int tenon_text_grammar_add(TextGrammar *grammar, const char *piece, size_t length);

#endif
