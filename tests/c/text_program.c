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

/* PROMPT, the most tokens, and after how many pieces to end. */
int main(int count, char **arguments) {
  static TENON_MEM_ALIGN(64) uint8_t network[WORDS_MUTABLE_MEM_SIZE], scratch[WORDS_ACTIVATIONS_MEM_SIZE];
  static TENON_MEM_ALIGN(64) uint8_t weights[WORDS_CONSTANT_MEM_SIZE], tables[1 << 20];
  words_sampling how = TENON_GREEDY;
  words_text text = {tables, 0, weights, network, scratch, NULL, NULL, NULL};
  if (count != 4 || read_all("words.weights.bin", weights, sizeof weights) != sizeof weights) return 1;
  text.tables_size = read_all("words.text.bin", tables, sizeof tables);
  size_t size = words_text_memory(&text, strlen(arguments[1]));
  int left = atoi(arguments[3]);
  void *memory = malloc(size);
  if (words_generate(&text, &how, arguments[1], 3, print, &left, memory, size - 1) != words_TEXT_NO_MEMORY) return 2;
  long made = words_generate(&text, &how, arguments[1], atol(arguments[2]), print, &left, memory, size);
  free(memory);
  printf("\n%ld\n", made);
  text.tables_size--;
  return words_text_memory(&text, 3) != 0 ? 3 : 0;
}
