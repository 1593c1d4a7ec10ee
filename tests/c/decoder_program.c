/* Generates words greedily with the two entry points of a decoder: the words of the prompt at once, by net_2, then word by
   word, by net, which finds the caches where net_2 left them.  Arguments: how many, and the prompt. */

#include "net.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

TENON_MEM_ALIGN(64) static const uint8_t weights[NET_CONSTANT_MEM_SIZE] = {
#include "net.weights.txt"
};
TENON_MEM_ALIGN(64) static uint8_t tensors[NET_MUTABLE_MEM_SIZE], scratch[NET_ACTIVATIONS_MEM_SIZE];

enum { WORDS = NET_logits_ELEMENTS };

static int64_t best(size_t offset) {
  float logits[WORDS];
  int i, word = 0;
  memcpy(logits, TENON_GET_ADDR(tensors, offset), sizeof logits);
  for (i = 1; i < WORDS; i++)
    if (logits[i] > logits[word]) word = i;
  return word;
}

int main(int count, char **arguments) {
  const int wanted = atoi(arguments[1]), given = count - 2;
  int64_t prompt[NET_2_input_ids_ELEMENTS], word, length = given;
  int i;
  if (given > NET_2_input_ids_ELEMENTS) return 1;
  for (i = 0; i < given; i++) prompt[i] = atoi(arguments[2 + i]);
  net_2_reset(tensors);
  memcpy(TENON_GET_ADDR(tensors, NET_2_input_ids), prompt, (size_t)given * sizeof *prompt);
  memcpy(TENON_GET_ADDR(tensors, NET_2_S), &length, sizeof length);
  if (net_2(weights, tensors, scratch) != 0) return 2;
  word = best(NET_2_logits + sizeof(float) * WORDS * (size_t)(given - 1));
  length = 1;
  memcpy(TENON_GET_ADDR(tensors, NET_S), &length, sizeof length);
  for (i = 0; i < wanted; i++) {
    printf("%d ", (int)word);
    memcpy(TENON_GET_ADDR(tensors, NET_input_ids), &word, sizeof word);
    if (net(weights, tensors, scratch) != 0) return 3;
    word = best(NET_logits);
  }
  return 0;
}
