/* Text by a decoder: a network with caches, whose runs take tokens and give logits. */

#ifndef TENON_TEXT_GENERATE_H
#define TENON_TEXT_GENERATE_H

#include "text_chat.h"
#include "text_grammar.h"
#include "text_output.h"
#include "text_sampling.h"

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
enum {
  TENON_TEXT_LONG = -1, TENON_TEXT_DAMAGED = -2, TENON_TEXT_NO_MEMORY = -3, TENON_TEXT_FAILED = -4,
  TENON_TEXT_GRAMMAR = -6 /* the grammar has a mistake, or allows no token */
};

/* What to go on with, and until when. */
typedef struct {
  const char *prompt;
  size_t length;
  int special;             /* whether the tokens that the model expects around every text are added */
  const char *const *stop; /* strings before which the text ends, the last one NULL; or NULL */
  long most;               /* tokens; negative: until the text ends or the caches are full */
  size_t *kept;            /* how many of the tokens that `memory` begins with are in the caches, from call to call: 0 at
                              first; or NULL */
  TextPieces *pieces;
  void *user;
  const char *grammar; /* in GBNF, which the text follows; NULL: that of the tables, if any; "": none */
} TextRequest;

/* Why a text ended: by a token or a string of `stop`, after `most` tokens, because the caches are full, or because the
   function for its pieces wanted no more. */
typedef enum { TEXT_STOP, TEXT_LENGTH, TEXT_CONTEXT, TEXT_CANCELLED } TextEnd;

typedef struct {
  long prompt, reused; /* tokens of the prompt, and of these those that the caches had */
  TextEnd end;
  const char *mistake; /* of the grammar, at a byte; NULL: it allowed no token */
  size_t mistake_at;
} TextResult;

/* The bytes of working memory for a prompt of `length` bytes. */
size_t tenon_text_memory(const TenonText *text, const TextDecoder *decoder, size_t length, const char *const *stop,
                         const char *grammar);

/* Go on with a prompt; `memory` are `size` bytes at a multiple of 8.  Returns the number of tokens, or one of the numbers
   above. */
long tenon_text_generate(const TenonText *text, const TextDecoder *decoder, TenonSampling *sampling,
                         const TextRequest *request, void *memory, size_t size, TextResult *result);

#endif
