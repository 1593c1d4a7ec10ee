/* Text by a decoder: a network with caches, whose runs take tokens and give logits. */

#ifndef TENON_TEXT_GENERATE_H
#define TENON_TEXT_GENERATE_H

#include "text_chat.h"
#include "text_encode.h"
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

/* Results of generation other than a number of tokens. */
enum {
  TENON_TEXT_LONG = -1, TENON_TEXT_DAMAGED = -2, TENON_TEXT_NO_MEMORY = -3, TENON_TEXT_FAILED = -4,
  TENON_TEXT_GRAMMAR = -6 /* the grammar has a mistake, or allows no token */
};

/* The text to go on with, and until when. */
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
  const char *grammar; /* GBNF or a JSON schema, which the text follows; NULL: that of the tables, if any; "": none */
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

/* A text that is being generated: `count` tokens, of which `past` are in the caches. */
typedef struct {
  const TenonText *text;
  TenonSampling *sampling;
  uint32_t *tokens;
  size_t count, past;
  TextOutput output;
  void *work; /* as tenon_text_choose needs it */
  TextGrammar *grammar; /* or NULL */
} TextProgress;

/* Add the next token by its logits; `context` are the most tokens in the caches.  Returns the tokens that were added, 1 or 0,
   or TENON_TEXT_GRAMMAR.  `*end` is TEXT_LENGTH if others may follow, unless it `is_last`. */
int tenon_text_next(TextProgress *progress, float *logits, uint32_t vocabulary, long context, int is_last, TextEnd *end);

/* How many of the tokens in caches stay: those that the prompt begins with, too, without its last one; none where caches
   that are rings, which had `reached` tokens, have lost what is before the rest. */
size_t tenon_text_common(const TenonText *text, const uint32_t *tokens, size_t count, size_t reached,
                         const uint32_t *prompt, size_t length);

/* The grammar that a text follows, where this one is given; NULL if there is none. */
const char *tenon_text_chosen_grammar(const TenonText *text, const char *given);

/* The bytes of working memory for a prompt of `length` bytes. */
size_t tenon_text_memory(const TenonText *text, const TextDecoder *decoder, size_t length, const char *const *stop,
                         const char *grammar);

/* Go on with a prompt; `memory` are `size` bytes at a multiple of 8.  Returns the number of tokens, or one of the numbers
   above. */
long tenon_text_generate(const TenonText *text, const TextDecoder *decoder, TenonSampling *sampling,
                         const TextRequest *request, void *memory, size_t size, TextResult *result);

#endif
