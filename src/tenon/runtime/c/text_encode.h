/* Tokens of texts. */

#ifndef TENON_TEXT_ENCODE_H
#define TENON_TEXT_ENCODE_H

#include "text.h"

/* The bytes of working memory that `tenon_text_encode` needs for a text of `length` bytes. */
size_t tenon_text_work(const TenonText *text, size_t length);

/* The tokens of a text in UTF-8; `special`: with those that the model expects around every text.  Special tokens that
   are written in the text are read as such.  `work` is memory of `tenon_text_work(text, length)` bytes, at a multiple
   of 8.  Returns the number of tokens, or TENON_TEXT_NO_ROOM for more than `room`. */
long tenon_text_encode(const TenonText *text, const char *string, size_t length, int special, uint32_t *tokens,
                       size_t room, void *work);

#endif
