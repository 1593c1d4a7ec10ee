/* Text by a decoder: a network with caches, whose runs take tokens and give logits. */

#ifndef TENON_TEXT_GENERATE_H
#define TENON_TEXT_GENERATE_H

#include "text.h"

/* Where the inputs and outputs of an entry point lie in the mutable region; TEXT_NOWHERE for those that it lacks. */
#define TEXT_NOWHERE ((size_t)-1)
typedef struct {
  long length, past; /* the most tokens of a run, and in the caches before it */
  size_t tokens, count, logits, positions, mask, mask_count;
  int every_row; /* whether there are logits for each token, not only for the last one */
} TextEntry;

/* A network: its entry points, in the order in which they are tried, and what runs one of them. */
typedef struct {
  const TextEntry *entries;
  int count;
  size_t past; /* where the number of tokens in the caches lies */
  uint32_t vocabulary;
  long context;
  uint8_t *memory; /* the mutable region */
  int (*run)(void *runner, int entry);
  void *runner;
} TextDecoder;

/* What generation returns instead of a number of tokens. */
enum { TENON_TEXT_LONG = -1, TENON_TEXT_DAMAGED = -2, TENON_TEXT_NO_MEMORY = -3, TENON_TEXT_FAILED = -4 };

/* Given a piece of the text, whole characters of UTF-8 (but bytes of a model that are none); what is not 0 ends the
   text. */
typedef int TextPieces(const char *piece, size_t length, void *user);

/* The bytes of working memory for a prompt of `length` bytes. */
size_t tenon_text_memory(const TenonText *text, const TextDecoder *decoder, size_t length);

/* Go on with a prompt, by `most` tokens at most (negative: until the text ends or the caches are full), and give the
   text to `pieces`.  Returns the number of tokens, or one of the numbers above. */
long tenon_text_generate(const TenonText *text, const TextDecoder *decoder, TenonSampling *sampling, const char *prompt,
                         size_t length, long most, TextPieces *pieces, void *user, void *memory, size_t size);

#endif
