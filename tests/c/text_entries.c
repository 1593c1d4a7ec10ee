/* Goes on with a prompt, and prints which entry point each run was of. */

#include "words_text.h"
#include <stdio.h>

static TENON_MEM_ALIGN(64) uint8_t network[WORDS_MUTABLE_MEM_SIZE], scratch[WORDS_ACTIVATIONS_MEM_SIZE];
static TENON_MEM_ALIGN(64) uint8_t weights[WORDS_CONSTANT_MEM_SIZE], tables[1 << 20], memory[1 << 20];

static int run(void *runner, int entry) {
  printf("%d", entry);
  (void)runner;
  return entry == 0 ? words(weights, network, scratch) : words_2(weights, network, scratch);
}

static int quiet(const char *piece, size_t length, void *user) {
  (void)piece, (void)length, (void)user;
  return 0;
}

static size_t read_all(const char *path, void *to, size_t room) {
  FILE *file = fopen(path, "rb");
  size_t size = file == NULL ? 0 : fread(to, 1, room, file);
  if (file != NULL) fclose(file);
  return size;
}

/* PROMPT, of which four tokens follow. */
int main(int count, char **arguments) {
  words_sampling how = TENON_GREEDY;
  words_text text = {tables, 0, weights, network, scratch, run, NULL, NULL, NULL};
  if (count != 2 || read_all("words.weights.bin", weights, sizeof weights) != sizeof weights) return 1;
  text.tables_size = read_all("words.text.bin", tables, sizeof tables);
  return words_generate(&text, &how, arguments[1], 4, quiet, NULL, memory, sizeof memory) == 4 ? 0 : 2;
}
