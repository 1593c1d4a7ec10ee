/* The tokens of a word, which a text is split into before. */

#ifndef TENON_TEXT_WORDS_H
#define TENON_TEXT_WORDS_H

#include "text_tables.h"

/* Where tokens go: at most `room` of them; `count` goes on. */
typedef struct {
  uint32_t *tokens;
  size_t room, count;
} TextTokens;

/* Add a token, if there is room. */
void tenon_text_add(TextTokens *to, uint32_t token);

/* The bytes of working memory for a word of `length` bytes. */
enum { TEXT_WORK_OF_BYTE = 48, TEXT_WORK_OF_WORD = 64 };

/* Add the tokens of a word. */
void tenon_text_word(const TenonText *text, const uint8_t *word, size_t length, TextTokens *to, void *work);

#endif
