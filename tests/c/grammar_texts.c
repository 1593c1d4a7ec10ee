/* Reads grammars, and goes on with tokens that they allow.

   TABLES GRAMMARS, a file of texts that zeros end.  Prints how many could be read, and how many not. */

#include "text_grammar.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 12 };

static char *content(const char *path, size_t *size) {
  FILE *file = fopen(path, "rb");
  char *bytes = malloc(1 << 24);
  *size = file == NULL || bytes == NULL ? 0 : fread(bytes, 1, 1 << 24, file);
  if (file != NULL) fclose(file);
  return bytes;
}

/* A token that may follow, by a number; -1 if there is none. */
static long chosen(const float *logits, uint32_t count, uint32_t number) {
  uint32_t left = 0;
  for (uint32_t i = 0; i < count; i++) left += logits[i] == 0;
  if (left == 0) return -1;
  left = number % left;
  for (uint32_t i = 0; i < count; i++)
    if (logits[i] == 0 && left-- == 0) return i;
  return -1;
}

static int follow(TextGrammar *grammar, const TenonText *text, uint32_t seed) {
  const uint32_t count = text->head[TEXT_VOCABULARY] + 3;
  float *logits = malloc(count * sizeof *logits);
  for (int i = 0; i < TOKENS; i++) {
    size_t length;
    memset(logits, 0, count * sizeof *logits);
    tenon_text_grammar_mask(grammar, logits, count);
    const long token = chosen(logits, count, seed = seed * 1664525u + 1013904223u);
    if (token < 0 || tenon_text_ends(text, (uint32_t)token)) break;
    const char *piece = tenon_text_piece(text, (uint32_t)token, &length);
    if (tenon_text_grammar_add(grammar, piece, length)) break;
  }
  free(logits);
  return 0;
}

int main(int count, char **words) {
  size_t table_bytes, bytes;
  TenonText text;
  TextGrammar grammar;
  if (count != 3) return 1;
  char *tables = content(words[1], &table_bytes), *all = content(words[2], &bytes);
  if (tenon_text_open(&text, tables, table_bytes) != 0) return 2;
  int read = 0, refused = 0;
  for (size_t at = 0, length; at < bytes; at += length + 1) {
    length = strlen(all + at);
    char *own = malloc(length + (length == 0)); /* without a zero, so that reads beyond are found */
    memcpy(own, all + at, length);
    void *memory = malloc(tenon_text_grammar_memory(&text, own, length));
    if (tenon_text_grammar_open(&grammar, &text, own, length, memory) != 0) {
      refused++;
      if (grammar.mistake == NULL || grammar.at > length) return 3;
    } else {
      read++;
      follow(&grammar, &text, (uint32_t)at);
    }
    free(memory);
    free(own);
  }
  free(all);
  free(tables);
  printf("%d %d\n", read, refused);
  return 0;
}
