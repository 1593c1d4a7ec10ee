#include "text_generate.h"
#include <string.h>

static int64_t *number_at(const TextDecoder *d, size_t offset) { return (int64_t *)(void *)(d->memory + offset); }

/* Bytes of the tokens in the caches, with one more and the most that were there, and of those of a prompt. */
static size_t token_bytes(const TextDecoder *d) { return ((size_t)d->context + 3) / 2 * 2 * sizeof(uint32_t); }

static size_t held_bytes(const TenonText *text, const char *const *stop) {
  return (tenon_text_held_bytes(stop, text->head[TEXT_LONGEST]) + 7) / 8 * 8;
}

/* Bytes of what is needed while tokens are made of a prompt or chosen. */
static size_t work_bytes(const TenonText *text, const TextDecoder *d, size_t length) {
  size_t sampling = (size_t)d->vocabulary * (sizeof(uint64_t) + sizeof(uint32_t)), encoding = tenon_text_work(text, length);
  return ((encoding > sampling ? encoding : sampling) + 15) / 8 * 8;
}

const char *tenon_text_chosen_grammar(const TenonText *text, const char *given) {
  if (given == NULL && text->head[TEXT_GRAMMAR] != 0) given = (const char *)text->base + text->head[TEXT_GRAMMAR];
  return given != NULL && *given != 0 ? given : NULL;
}

size_t tenon_text_memory(const TenonText *text, const TextDecoder *d, size_t length, const char *const *stop,
                         const char *grammar) {
  const char *chosen = tenon_text_chosen_grammar(text, grammar);
  return 2 * token_bytes(d) + held_bytes(text, stop) + work_bytes(text, d, length) +
         (chosen != NULL ? tenon_text_grammar_memory(text, chosen, strlen(chosen)) : 0);
}

/* The entry point that takes the most tokens of those that are left; of several, the one for the fewest. */
static int fitting(const TextDecoder *d, long left, long past) {
  int best = -1;
  long most = 0;
  for (int i = 0; i < d->count; i++) {
    long length = d->entries[i].length, takes = length < left ? length : left;
    if (past > d->entries[i].past) continue;
    if (best < 0 || takes > most || (takes == most && length < d->entries[best].length)) {
      best = i;
      most = takes;
    }
  }
  return best;
}

static void feed(const TextDecoder *d, const TextEntry *entry, const uint32_t *tokens, long count, long past) {
  for (long i = 0; i < count; i++) number_at(d, entry->tokens)[i] = tokens[i];
  if (entry->count != TEXT_NOWHERE) *number_at(d, entry->count) = count;
  if (entry->positions != TEXT_NOWHERE)
    for (long i = 0; i < count; i++) number_at(d, entry->positions)[i] = past + i;
  if (entry->mask != TEXT_NOWHERE)
    for (long i = 0; i < past + count; i++) number_at(d, entry->mask)[i] = 1;
  if (entry->mask_count != TEXT_NOWHERE) *number_at(d, entry->mask_count) = past + count;
}

/* Run the network on tokens behind `past` others; the logits of the last one, or NULL where a run fails. */
static float *logits_of(const TextDecoder *d, const uint32_t *tokens, long count, long past) {
  float *logits = NULL;
  *number_at(d, d->past) = past;
  for (long done = 0; done < count;) {
    int number = fitting(d, count - done, past + done);
    if (number < 0) return NULL;
    const TextEntry *entry = &d->entries[number];
    long taken = entry->length < count - done ? entry->length : count - done;
    feed(d, entry, tokens + done, taken, past + done);
    if (d->run(d->runner, number) != 0) return NULL;
    logits = (float *)(void *)(d->memory + entry->logits) + (entry->every_row ? (size_t)(taken - 1) * d->vocabulary : 0);
    done += taken;
  }
  return logits;
}

size_t tenon_text_common(const TenonText *text, const uint32_t *tokens, size_t count, size_t reached,
                         const uint32_t *prompt, size_t length) {
  size_t same = 0;
  while (same < count && same + 1 < length && tokens[same] == prompt[same]) same++;
  return reached - same <= text->head[TEXT_REWIND] ? same : 0;
}

int tenon_text_next(TextProgress *g, float *logits, uint32_t vocabulary, long context, int is_last, TextEnd *end) {
  size_t bytes;
  if (g->grammar != NULL && tenon_text_grammar_mask(g->grammar, logits, vocabulary) == 0) return TENON_TEXT_GRAMMAR;
  const uint32_t token = tenon_text_choose(g->sampling, logits, vocabulary, g->tokens, g->count, g->work);
  *end = TEXT_STOP;
  if (tenon_text_ends(g->text, token)) return 0;
  const char *piece = tenon_text_piece(g->text, token, &bytes);
  g->tokens[g->count++] = token;
  tenon_text_put(&g->output, piece, bytes);
  if (g->grammar != NULL && tenon_text_grammar_add(g->grammar, piece, bytes)) return 1;
  const int is_full = !is_last && g->past >= (size_t)context;
  if (!g->output.has_stopped) *end = g->output.is_ended ? TEXT_CANCELLED : is_full ? TEXT_CONTEXT : TEXT_LENGTH;
  return 1;
}

/* Choose up to `most` tokens, and say why there are no more; the number of them. */
static long go_on(TextProgress *g, const TextDecoder *d, long most, TextEnd *end) {
  long made = 0;
  *end = TEXT_LENGTH;
  while (made != most && *end == TEXT_LENGTH) {
    float *logits = logits_of(d, g->tokens + g->past, (long)(g->count - g->past), (long)g->past);
    if (logits == NULL) return TENON_TEXT_FAILED;
    g->past = g->count;
    const int added = tenon_text_next(g, logits, d->vocabulary, d->context, made + 1 == most, end);
    if (added < 0) return added;
    made += added;
  }
  return made;
}

long tenon_text_generate(const TenonText *text, const TextDecoder *d, TenonSampling *sampling, const TextRequest *request,
                         void *memory, size_t size, TextResult *result) {
  uint8_t *at = (uint8_t *)memory;
  uint32_t *tokens = (uint32_t *)memory, *prompt = (uint32_t *)(void *)(at + token_bytes(d));
  TextProgress g = {text, sampling, tokens, 0, 0, {request->pieces, request->user, request->stop, NULL, {0}, 0, 0, 0, 0},
                  at + 2 * token_bytes(d) + held_bytes(text, request->stop), NULL};
  const char *rules = tenon_text_chosen_grammar(text, request->grammar);
  TextGrammar grammar;
  g.output.held = (char *)at + 2 * token_bytes(d);
  if (size < tenon_text_memory(text, d, request->length, request->stop, request->grammar)) return TENON_TEXT_NO_MEMORY;
  const long count = tenon_text_encode(text, request->prompt, request->length, request->special, prompt,
                                       (size_t)d->context, g.work);
  if (count <= 0 || count >= d->context) return TENON_TEXT_LONG;
  if (rules != NULL) {
    g.grammar = &grammar;
    if (tenon_text_grammar_open(&grammar, text, rules, strlen(rules),
                                (uint8_t *)g.work + work_bytes(text, d, request->length)) != 0) {
      result->mistake = grammar.mistake;
      result->mistake_at = grammar.at;
      return TENON_TEXT_GRAMMAR;
    }
  }
  g.count = (size_t)count;
  uint32_t *reached = &tokens[d->context + 1];
  if (request->kept == NULL || *request->kept == 0) *reached = 0;
  else g.past = tenon_text_common(text, tokens, *request->kept, *reached, prompt, g.count);
  if (g.past == 0) *reached = 0;
  result->prompt = count;
  result->reused = (long)g.past;
  memcpy(tokens, prompt, g.count * sizeof *tokens);
  const long made = go_on(&g, d, request->most, &result->end);
  if (g.past > *reached) *reached = (uint32_t)g.past;
  if (request->kept != NULL) *request->kept = made < 0 ? 0 : g.past;
  tenon_text_finish(&g.output);
  return made;
}
