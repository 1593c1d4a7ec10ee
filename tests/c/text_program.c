/* Goes on with a prompt by the C files of a bundle, and counts the pieces that it gets. */

#include "words_text.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static size_t read_all(const char *path, void *to, size_t room) {
  FILE *file = fopen(path, "rb");
  size_t size = file == NULL ? 0 : fread(to, 1, room, file);
  if (file != NULL) fclose(file);
  return size;
}

static int print(const char *piece, size_t length, void *user) {
  int *left = user;
  fwrite(piece, 1, length, stdout);
  return --*left == 0;
}

/* Answers a message twice, in memory that has exactly the size that is asked for: the second time, all tokens but the last
   one are in the caches. */
static long answer_twice(words_text *text, words_sampling *how, const char *content) {
  const words_message messages[] = {{"system", "the mat"}, {"user", content}};
  const words_message wrong[] = {{"user", content}, {"user", content}};
  size_t kept = 0, size = words_chat_memory(text, messages, 2);
  int left = -1;
  void *memory = malloc(size);
  long first = words_chat(text, how, messages, 2, 4, print, &left, &kept, memory, size), before = (long)kept;
  printf("\n");
  long second = words_chat(text, how, messages, 2, 4, print, &left, &kept, memory, size);
  printf("\n");
  long refused = words_chat(text, how, wrong, 2, 4, print, &left, &kept, memory, size);
  long small = words_chat(text, how, messages, 2, 4, print, &left, &kept, memory, size - 1);
  free(memory);
  if (refused != words_TEXT_NO_CHAT || small != words_TEXT_NO_MEMORY || words_chat_memory(text, wrong, 2) != 0) return -10;
  return first == second && before == (long)kept && before > 0 ? first : -11;
}

/* Follows a grammar, in memory of exactly the size that is asked for, and refuses others. */
static long follow_grammar(words_text *text, words_sampling *how, const char *prompt) {
  static const char *const grammars[] = {"root ::= \"[\" [a-c]{2} \"]\"\n", "root ::= [", "root ::= \"\""};
  long made[3];
  int left = -1;
  for (int i = 0; i < 3; i++) {
    text->grammar = grammars[i];
    const size_t size = words_text_memory(text, strlen(prompt));
    void *memory = malloc(size);
    made[i] = words_generate(text, how, prompt, -1, print, &left, memory, size);
    free(memory);
  }
  text->grammar = NULL;
  printf("\n");
  return made[0] > 0 && made[1] == words_TEXT_GRAMMAR && made[2] == 0 ? 0 : -12;
}

/* PROMPT, the most tokens, and after how many pieces to end. */
int main(int count, char **arguments) {
  static TENON_MEM_ALIGN(64) uint8_t network[WORDS_MUTABLE_MEM_SIZE], scratch[WORDS_ACTIVATIONS_MEM_SIZE];
  static TENON_MEM_ALIGN(64) uint8_t weights[WORDS_CONSTANT_MEM_SIZE], tables[1 << 20];
  words_sampling how = TENON_GREEDY;
  words_text text = {tables, 0, weights, network, scratch, NULL, NULL, NULL, NULL};
  const char *const stop[] = {"never and never", NULL};
  if (count != 4 || read_all("words.weights.bin", weights, sizeof weights) != sizeof weights) return 1;
  text.tables_size = read_all("words.text.bin", tables, sizeof tables);
  if (words_recommended(&text, &how) != 0 || how.temperature != 0 || how.recent != 64) return 4;
  text.stop = stop;
  size_t size = words_text_memory(&text, strlen(arguments[1]));
  int left = atoi(arguments[3]);
  void *memory = malloc(size);
  if (words_generate(&text, &how, arguments[1], 3, print, &left, memory, size - 1) != words_TEXT_NO_MEMORY) return 2;
  long made = words_generate(&text, &how, arguments[1], atol(arguments[2]), print, &left, memory, size);
  free(memory);
  printf("\n%ld\n", made);
  if (left < 0 && answer_twice(&text, &how, arguments[1]) < 0) return 5;
  if (left < 0 && follow_grammar(&text, &how, arguments[1]) < 0) return 6;
  text.tables_size--;
  return words_text_memory(&text, 3) != 0 ? 3 : 0;
}
