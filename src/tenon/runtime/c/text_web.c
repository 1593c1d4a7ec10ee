/* Entry points of the WebAssembly modules of pages that go on with a text. */

#include "text_program.h"

#include <stdlib.h>
#include <string.h>

#define EXPORT(name) __attribute__((export_name(name)))

/* Given to the page: a piece of the text; what it returns, if it is not 0, ends the text. */
__attribute__((import_module("page"), import_name("piece"))) int tenon_page_piece(const char *piece, size_t length);

static int give(const char *piece, size_t length, void *user) {
  (void)user;
  return tenon_page_piece(piece, length);
}

/* A function of web_library.c: memory that was allocated so far stays. */
void tenon_web_keep(void);

/* Bytes of a token in a conversation that fills the caches, on average at most; and of a grammar that it may follow. */
enum { TOKEN_BYTES = 16, GRAMMAR_BYTES = 1 << 14 };

static OF_BUNDLE(_text) text = {tenon_text_tables, 0, tenon_weights, network, scratch, NULL, NULL, NULL, NULL};
static OF_BUNDLE(_sampling) how = TENON_GREEDY;

/* How tokens are chosen from now on. */
EXPORT("sampling") void tenon_web_sampling(double temperature, uint32_t top_k, double top_p, double repetition_penalty,
                                           uint32_t seed) {
  text.tables_size = tenon_text_tables_size;
  how.temperature = temperature;
  how.top_k = top_k;
  how.top_p = top_p;
  how.repetition_penalty = (float)repetition_penalty;
  how.state = seed;
}

/* The grammar in GBNF or JSON schema, which a zero ends, that texts follow from now on; NULL: that of the tables, if any. */
EXPORT("grammar") void tenon_web_grammar(const char *grammar) { text.grammar = grammar; }

static void *conversation; /* keeps the tokens that the caches have */
static size_t conversation_size, kept;

/* Go on with a prompt, which a zero ends, by at most `most` tokens (-1: any number); returns what the entry point of the
   bundle does. */
EXPORT("generate") long tenon_web_generate(const char *prompt, long most) {
  size_t size = OF_BUNDLE(_text_memory)(&text, strlen(prompt));
  void *memory = malloc(size);
  if (memory == NULL || size == 0) return OF_BUNDLE(_TEXT_NO_MEMORY);
  kept = 0; /* the caches have other tokens then */
  return OF_BUNDLE(_generate)(&text, &how, prompt, most, give, NULL, memory, size);
}

/* To be called before anything else is allocated; 0 if there is not enough memory. */
EXPORT("begin_chat") int tenon_web_begin_chat(void) {
  text.tables_size = tenon_text_tables_size;
  static char longest[GRAMMAR_BYTES];
  memset(longest, '{', sizeof longest - 1); /* a schema takes the most memory */
  const size_t usual = OF_BUNDLE(_text_memory)(&text, TOKEN_BYTES * BYTES_OF(CONTEXT));
  text.grammar = longest;
  const size_t most = OF_BUNDLE(_text_memory)(&text, TOKEN_BYTES * BYTES_OF(CONTEXT));
  text.grammar = NULL;
  conversation_size = (most > usual ? most : usual) + TOKEN_BYTES * BYTES_OF(CONTEXT);
  conversation = malloc(conversation_size);
  tenon_web_keep();
  return conversation != NULL;
}

/* Answer the last of `count` messages, as the entry point of the bundle does. */
EXPORT("chat") long tenon_web_chat(const OF_BUNDLE(_message) *messages, size_t count, long most) {
  return OF_BUNDLE(_chat)(&text, &how, messages, count, most, give, NULL, &kept, conversation, conversation_size);
}
