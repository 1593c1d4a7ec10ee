/* Vectors of texts by a network that takes tokens. */

#ifndef TENON_TEXT_EMBED_H
#define TENON_TEXT_EMBED_H

#include "text.h"
#include "text_encode.h"

/* Where the inputs and the output lie in the mutable region; TEXT_NOWHERE for those that there are not.  The output has
   `rows` of `width` numbers: 1, or one for each of at most `length` tokens, of which the mean is taken. */
#define TEXT_NOWHERE ((size_t)-1)
typedef struct {
  size_t length, tokens, count, mask, mask_count, types, types_count, positions, positions_count, output, rows, width;
} TextEncoder;

/* Results of embedding other than 0. */
enum { TENON_TEXT_LONG = -1, TENON_TEXT_DAMAGED = -2, TENON_TEXT_NO_MEMORY = -3, TENON_TEXT_FAILED = -4 };

/* The bytes of working memory for a text of `length` bytes. */
size_t tenon_text_embed_memory(const TenonText *text, const TextEncoder *encoder, size_t length);

/* Write the inputs for a text into the mutable region; the number of its tokens, or one of the numbers above.  `work` are
   `size` bytes at a multiple of 8. */
long tenon_text_embed_begin(const TenonText *text, const TextEncoder *encoder, uint8_t *mutable_region, const char *string,
                            size_t length, void *work, size_t size);

/* Read the vector [width] of length 1 after the run. */
void tenon_text_embed_end(const TextEncoder *encoder, const uint8_t *mutable_region, long tokens, float *vector);

#endif
