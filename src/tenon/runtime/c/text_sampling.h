/* The choice of the next token. */

#ifndef TENON_TEXT_SAMPLING_H
#define TENON_TEXT_SAMPLING_H

#include "text.h"

/* How the next token is chosen: the fields of tenon.Sampling.  `recent` tokens of those before count for penalties. */
typedef struct {
  double temperature, top_p, min_p;
  float repetition_penalty, presence_penalty, frequency_penalty;
  uint32_t top_k, recent;
  uint64_t state; /* the seed, then that of the generator of random numbers */
} TenonSampling;

/* The most probable token, without penalties. */
#define TENON_GREEDY {0, 1, 0, 1, 0, 0, 0, 64, 0}

/* The values that the model's file recommends; the most probable token where it recommends none.  `state` stays. */
void tenon_text_sampling(const TenonText *text, TenonSampling *sampling);

/* The next token, from `logits` [size], which are changed, after `count` tokens.  `work` is memory for `size` numbers
   of 8 and `size` of 4 bytes, at a multiple of 8. */
uint32_t tenon_text_choose(TenonSampling *sampling, float *logits, uint32_t size, const uint32_t *tokens, size_t count,
                           void *work);

#endif
