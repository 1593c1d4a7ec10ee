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

static void put(size_t offset, int64_t number) { memcpy(TENON_GET_ADDR(tensors, offset), &number, sizeof number); }

static void allow(size_t mask, int count) {
  int i;
  for (i = 0; i < count; i++) put(mask + sizeof(int64_t) * (size_t)i, 1);
}

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
  int64_t word;
  int i;
  if (given > NET_2_input_ids_ELEMENTS) return 1;
  net_2_reset(tensors);
  for (i = 0; i < given; i++) put(NET_2_input_ids + sizeof(int64_t) * (size_t)i, atoi(arguments[2 + i]));
  allow(NET_2_attention_mask, given);
  put(NET_2_sequence, given);
  put(NET_2_past_sequence, given);
  if (net_2(weights, tensors, scratch) != 0) return 2;
  word = best(NET_2_logits + sizeof(float) * WORDS * (size_t)(given - 1));
  put(NET_sequence, 1);
  for (i = 0; i < wanted; i++) {
    printf("%d ", (int)word);
    put(NET_input_ids, word);
    allow(NET_attention_mask, given + i + 1);
    put(NET_past_sequence, given + i + 1);
    if (net(weights, tensors, scratch) != 0) return 3;
    word = best(NET_logits);
  }
  return 0;
}
