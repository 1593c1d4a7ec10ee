/* Text before and after language models: the tables of a tokenizer, and texts of tokens.

   All tables lie in one block of memory, which Tenon writes beside a bundle (NAME.text.bin, or linked into a program).
   No function here allocates memory or keeps anything between calls. */

#ifndef TENON_TEXT_H
#define TENON_TEXT_H

#include <stddef.h>
#include <stdint.h>

/* Results of functions other than a number. */
enum {
  TENON_TEXT_NO_ROOM = -1,  /* the tokens do not fit */
  TENON_TEXT_NO_TABLES = -2 /* the tables are damaged, or of another version */
};

/* The tables at an address that is a multiple of 8. */
typedef struct {
  const uint32_t *head;
  const uint8_t *base;
} TenonText;

/* Numbers at the beginning of the tables. */
enum {
  TEXT_MAGIC, TEXT_VERSION, TEXT_BYTES, TEXT_MODEL, TEXT_FLAGS, TEXT_VOCABULARY, TEXT_UNKNOWN, TEXT_LONGEST,
  TEXT_GROWTH, TEXT_ADDED_BYTES, TEXT_STEPS, TEXT_STEP_ROWS, TEXT_SPLITS, TEXT_SPLIT_ROWS, TEXT_CLASSES,
  TEXT_CLASS_PAGES, TEXT_CLASS_ROWS, TEXT_MAP_PAGES, TEXT_MAP_ROWS, TEXT_MAP_STARTS, TEXT_MAP_TEXTS, TEXT_NAME_STARTS,
  TEXT_NAMES, TEXT_PIECE_STARTS, TEXT_PIECES, TEXT_NAME_MASK, TEXT_NAME_SLOTS, TEXT_PAIR_MASK, TEXT_PAIR_SLOTS,
  TEXT_PAIRS, TEXT_BYTE_TOKENS, TEXT_SCORES, TEXT_SPECIAL_COUNT, TEXT_SPECIAL_ROWS, TEXT_SPECIAL_BITS, TEXT_FIRST,
  TEXT_FIRST_TOKENS, TEXT_LAST, TEXT_LAST_TOKENS, TEXT_ENDS, TEXT_END_TOKENS, TEXT_LONGEST_WORD, TEXT_FORM_PAGES,
  TEXT_FORM_NUMBERS, TEXT_FORM_ENTRIES, TEXT_FORM_POINTS, TEXT_FORM_PAIR_COUNT, TEXT_FORM_PAIRS, TEXT_CHAT,
  TEXT_CHAT_TEXTS, TEXT_SAMPLING, TEXT_DEEPEST, TEXT_ORDER_COUNT, TEXT_ORDER, TEXT_COMMON, TEXT_GRAMMAR, TEXT_SPEECH,
  TEXT_REWIND, TEXT_ROOM, TEXT_HEAD
};

/* Open tables of `size` bytes.  Returns 0, or TENON_TEXT_NO_TABLES. */
int tenon_text_open(TenonText *text, const void *tables, size_t size);

/* The bytes of a token, of which there are `*length`; none for special tokens. */
const char *tenon_text_piece(const TenonText *text, uint32_t token, size_t *length);

/* Whether a token ends a text. */
int tenon_text_ends(const TenonText *text, uint32_t token);

#endif
