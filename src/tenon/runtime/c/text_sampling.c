#include "text_sampling.h"
#include "text_tables.h"
#include <string.h>

/* Probabilities are weights of 2^ONE for the most probable token, in integers: see runtime/text/sampling.py. */
enum { ONE = 40, FRACTION = 24, TERMS = 10 };

static const uint64_t TWO_TO[TERMS] = {1073741824, 744261118, 257941248, 59597083, 10327387,
                                       1431680,    165394,    16377,     1419,     109};

/* A token that may be chosen. */
typedef struct {
  uint32_t *tokens;
  uint64_t *weights;
  uint32_t count;
} Candidates;

static uint64_t scaled(uint64_t number, uint64_t limit) { /* the upper half of the product */
  uint64_t a = number >> 32, b = number & 0xffffffffu, c = limit >> 32, d = limit & 0xffffffffu;
  uint64_t low = b * d, first = a * d + (low >> 32), second = b * c + (first & 0xffffffffu);
  return a * c + (first >> 32) + (second >> 32);
}

static uint64_t below(uint64_t *state, uint64_t limit) {
  uint64_t z = *state += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return scaled(z ^ (z >> 31), limit);
}

static int occurred_before(const uint32_t *tokens, size_t from, size_t at) {
  for (size_t i = from; i < at; i++)
    if (tokens[i] == tokens[at]) return 1;
  return 0;
}

static void penalise(const TenonSampling *how, float *logits, uint32_t size, const uint32_t *tokens, size_t count) {
  size_t from = count > how->recent ? count - how->recent : 0;
  if (how->repetition_penalty == 1 && how->presence_penalty == 0 && how->frequency_penalty == 0) return;
  for (size_t i = from; i < count; i++) {
    if (tokens[i] >= size || occurred_before(tokens, from, i)) continue;
    float often = 0;
    for (size_t j = i; j < count; j++) often += tokens[j] == tokens[i];
    float *logit = &logits[tokens[i]];
    volatile float less = often * how->frequency_penalty; /* not contracted to one instruction with the subtraction */
    volatile float changed = *logit > 0 ? *logit / how->repetition_penalty : *logit * how->repetition_penalty;
    changed = changed - less;
    *logit = changed - how->presence_penalty;
  }
}

static uint64_t power(double score, double largest, double factor) {
  volatile double difference = score - largest;
  double logarithm = difference * factor;
  if (logarithm < -64) logarithm = -64;
  const double scaled_logarithm = logarithm * (1 << FRACTION);
  int64_t whole = (int64_t)scaled_logarithm;
  whole -= (double)whole > scaled_logarithm; /* towards the smaller number */
  uint64_t rest = (uint64_t)whole & ((1 << FRACTION) - 1), total = TWO_TO[TERMS - 1];
  for (int i = TERMS - 2; i >= 0; i--) total = (total * rest >> FRACTION) + TWO_TO[i];
  int64_t down = -(whole >> FRACTION);
  return total << (ONE - 30) >> (down < 63 ? down : 63);
}

/* Whether the candidate `a` comes behind `b`: it has the smaller logit, or as the same one the larger number. */
static int comes_behind(const float *logits, uint32_t a, uint32_t b) {
  return logits[a] != logits[b] ? logits[a] < logits[b] : a > b;
}

static void sink(const float *logits, uint32_t *heap, uint32_t at, uint32_t count) {
  uint32_t token = heap[at];
  for (uint32_t next; (next = 2 * at + 1) < count; at = next) {
    if (next + 1 < count && comes_behind(logits, heap[next + 1], heap[next])) next++;
    if (!comes_behind(logits, heap[next], token)) break;
    heap[at] = heap[next];
  }
  heap[at] = token;
}

/* Sort tokens by their logits, the largest first. */
static void sort(const float *logits, uint32_t *tokens, uint32_t count) {
  for (uint32_t i = count / 2; i-- > 0;) sink(logits, tokens, i, count);
  for (uint32_t last = count; last-- > 1;) {
    uint32_t token = tokens[0];
    tokens[0] = tokens[last];
    tokens[last] = token;
    sink(logits, tokens, 0, last);
  }
}

/* The tokens that may be chosen, the most probable one first. */
static void collect(const TenonSampling *how, const float *logits, uint32_t size, uint32_t best, Candidates *c) {
  float least = (float)((double)logits[best] - 30.0 * how->temperature);
  double factor = 1.4426950408889634 / how->temperature;
  for (uint32_t i = 0; i < size; i++)
    if (logits[i] >= least) c->tokens[c->count++] = i;
  sort(logits, c->tokens, c->count);
  if (how->top_k > 0 && how->top_k < c->count) c->count = how->top_k;
  for (uint32_t i = 0; i < c->count; i++) c->weights[i] = power(logits[c->tokens[i]], logits[best], factor);
}

static uint64_t sum(const Candidates *c) {
  uint64_t total = 0;
  for (uint32_t i = 0; i < c->count; i++) total += c->weights[i];
  return total;
}

static void cut(const TenonSampling *how, Candidates *c) {
  if (how->top_p < 1) {
    uint64_t enough = (uint64_t)(how->top_p * (double)sum(c)), so_far = 0;
    uint32_t i = 0;
    while (i < c->count && (so_far += c->weights[i]) < enough) i++;
    if (i + 1 < c->count) c->count = i + 1;
  }
  if (how->min_p > 0) {
    uint64_t least = (uint64_t)(how->min_p * (double)((uint64_t)1 << ONE));
    while (c->count > 0 && c->weights[c->count - 1] < least) c->count--;
  }
}

uint32_t tenon_text_choose(TenonSampling *how, float *logits, uint32_t size, const uint32_t *tokens, size_t count,
                           void *work) {
  uint32_t best = 0;
  penalise(how, logits, size, tokens, count);
  for (uint32_t i = 1; i < size; i++)
    if (logits[i] > logits[best]) best = i;
  if (!(how->temperature > 0)) return best;
  uint64_t *weights = (uint64_t *)work;
  Candidates c = {(uint32_t *)(void *)(weights + size), weights, 0};
  collect(how, logits, size, best, &c);
  cut(how, &c);
  uint64_t drawn = below(&how->state, sum(&c));
  for (uint32_t i = 0; i < c.count; i++) {
    if (drawn < c.weights[i]) return c.tokens[i];
    drawn -= c.weights[i];
  }
  return best;
}

void tenon_text_sampling(const TenonText *text, TenonSampling *how) {
  const double *values = (const double *)tenon_text_section(text, TEXT_SAMPLING);
  how->temperature = values[0];
  how->top_p = values[1];
  how->min_p = values[2];
  how->repetition_penalty = (float)values[3];
  how->presence_penalty = (float)values[4];
  how->frequency_penalty = (float)values[5];
  how->top_k = (uint32_t)values[6];
  how->recent = (uint32_t)values[7];
}
