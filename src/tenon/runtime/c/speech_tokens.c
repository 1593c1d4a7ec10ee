/* Tokens of a piece of sound: the likeliest one, again and again, of those that may follow. */

#include "speech.h"
#include <math.h>
#include <string.h>

/* Numbers of the table of tokens (runtime/text/speech_tokens.py), behind which lie so many tokens each of the first four. */
enum {
  STARTS, NEVER, NEVER_FIRST, LANGUAGES, TRANSCRIBE, NO_TIMES, FIRST_TIME, FIRST_END, NUMBERS
};
enum {
  MULTILINGUAL = 51865, /* logits of the smallest network for several languages; others have their tokens all the same */
  LATEST = 50           /* steps of times after which a text begins at the latest */
};

typedef struct {
  const uint32_t *numbers, *start, *never, *never_first, *languages;
} Tokens;

static Tokens tokens_of(const TenonText *text) {
  Tokens t = {(const uint32_t *)tenon_text_section(text, TEXT_SPEECH), NULL, NULL, NULL, NULL};
  t.start = t.numbers + NUMBERS;
  t.never = t.start + t.numbers[STARTS];
  t.never_first = t.never + t.numbers[NEVER];
  t.languages = t.never_first + t.numbers[NEVER_FIRST];
  return t;
}

int32_t tenon_speech_first_time(const TenonText *text) { return (int32_t)tokens_of(text).numbers[FIRST_TIME]; }

static uint32_t language_count(const SpeechListener *l, const Tokens *t) {
  return l->networks.places.vocabulary < MULTILINGUAL ? 0 : t->numbers[LANGUAGES];
}

/* The token <|name|> of a language. */
static int32_t language_token(const SpeechListener *l, const Tokens *t, const char *name) {
  const uint32_t *starts = (const uint32_t *)tenon_text_section(&l->text, TEXT_NAME_STARTS);
  const char *names = (const char *)tenon_text_section(&l->text, TEXT_NAMES);
  const size_t length = strlen(name);
  for (uint32_t i = 0; i < language_count(l, t); i++) {
    const uint32_t token = t->languages[i];
    if (starts[token + 1] - starts[token] == length + 4 && memcmp(names + starts[token] + 2, name, length) == 0)
      return (int32_t)token;
  }
  return TEXT_NONE;
}

int tenon_speech_check(const SpeechListener *l) {
  if (l->text.head[TEXT_SPEECH] == 0) return TENON_SPEECH_DAMAGED;
  const Tokens t = tokens_of(&l->text);
  if (l->options.language == NULL || language_token(l, &t, l->options.language) != TEXT_NONE) return 0;
  return TENON_SPEECH_NO_LANGUAGE;
}

/* ---------------------------------------------------------------------------------------------------------- network */

static int64_t *number_at(uint8_t *region, size_t offset) { return (int64_t *)(void *)(region + offset); }

/* Run the encoder, and hand its results to the decoder. */
static int encode(const SpeechListener *l, size_t count) {
  const SpeechNetworks *n = &l->networks;
  const SpeechPlaces *p = &n->places;
  float *samples = (float *)(void *)(n->encoder + p->samples);
  const size_t least = p->sample_count == SPEECH_NOWHERE ? p->most : p->least, given = count < least ? least : count;
  memcpy(samples, l->samples, count * sizeof *samples);
  memset(samples + count, 0, (given - count) * sizeof *samples);
  if (p->sample_count != SPEECH_NOWHERE) *number_at(n->encoder, p->sample_count) = (int64_t)given;
  if (n->run(n->runner, SPEECH_ENCODE) != 0) return TENON_SPEECH_FAILED;
  const size_t positions =
      p->encoded == SPEECH_NOWHERE ? p->most_encoded : (size_t)*number_at(n->encoder, p->encoded);
  if (positions > p->most_encoded) return TENON_SPEECH_FAILED;
  for (int i = 0; i < p->cross_count; i++) {
    const SpeechCross *c = &p->cross[i];
    for (size_t row = 0; row < c->rows; row++)
      memcpy(n->decoder + c->to + row * c->to_step, n->encoder + c->from + row * c->from_step, positions * c->position);
  }
  if (p->positions != SPEECH_NOWHERE) *number_at(n->decoder, p->positions) = (int64_t)positions;
  return n->run(n->runner, SPEECH_RESET) != 0 ? TENON_SPEECH_FAILED : 0;
}

/* Add tokens to the caches; the logits behind the last one, or NULL where a run fails. */
static float *logits_of(const SpeechListener *l, const uint32_t *tokens, size_t count) {
  const SpeechNetworks *n = &l->networks;
  for (size_t i = 0; i < count; i++) {
    *number_at(n->decoder, n->places.token) = tokens[i];
    if (n->run(n->runner, SPEECH_DECODE) != 0) return NULL;
  }
  return (float *)(void *)(n->decoder + n->places.logits);
}

/* -------------------------------------------------------------------------------------------------- what may follow */

static void forbid(float *logits, uint32_t first, uint32_t end) {
  for (uint32_t i = first; i < end; i++) logits[i] = -INFINITY;
}

static void forbid_listed(float *logits, uint32_t size, const uint32_t *tokens, uint32_t count) {
  for (uint32_t i = 0; i < count; i++)
    if (tokens[i] < size) logits[tokens[i]] = -INFINITY;
}

/* e to a number that is not positive. */
static double exponential(double x) {
  double sum = 1, term = 1;
  int halved = 0;
  if (!(x > -700)) return 0;
  for (; x < -0.5; halved++) x /= 2;
  for (int i = 1; i < 16; i++) sum += term *= x / i;
  for (; halved > 0; halved--) sum *= sum;
  return sum;
}

static float greatest(const float *logits, uint32_t first, uint32_t end) {
  float most = -INFINITY;
  for (uint32_t i = first; i < end; i++)
    if (logits[i] > most) most = logits[i];
  return most;
}

/* Whether all times together are likelier than the likeliest word. */
static int is_time_likelier(const float *logits, uint32_t first, uint32_t size) {
  const float time = greatest(logits, first, size), word = greatest(logits, 0, first);
  double sum = 0;
  if (time == -INFINITY) return 0;
  if (word < time) return 1;
  for (uint32_t i = first; i < size; i++) sum += exponential((double)logits[i] - (double)word);
  return sum > 1;
}

/* Forbid what cannot follow `made`, as the class TimestampRules of runtime/speech does. */
static void apply_times(const Tokens *t, float *logits, uint32_t size, const uint32_t *made, long count) {
  const uint32_t first = t->numbers[FIRST_TIME], end = t->numbers[FIRST_END];
  const int is_begun = count > 0 && made[count - 1] >= first, is_pair = is_begun && (count < 2 || made[count - 2] >= first);
  if (count == 0) {
    forbid(logits, 0, first);
    if (first + LATEST + 1 < size) forbid(logits, first + LATEST + 1, size);
  } else if (is_pair) {
    forbid(logits, first, size);
  } else if (is_begun) {
    forbid(logits, 0, end);
  }
  for (long i = count; i-- > 0;) {
    if (made[i] < first) continue;
    const uint32_t least = made[i] + (is_begun && !is_pair ? 0 : 1);
    forbid(logits, first, least < size ? least : size);
    break;
  }
  if (is_time_likelier(logits, first, size)) forbid(logits, 0, first);
}

/* The likeliest token that may follow. */
static uint32_t choose(const SpeechListener *l, const Tokens *t, float *logits, long count, int times) {
  const uint32_t size = l->networks.places.vocabulary, known = l->text.head[TEXT_VOCABULARY];
  const uint32_t first = t->numbers[FIRST_TIME];
  uint32_t best = 0;
  forbid_listed(logits, size, t->never, t->numbers[NEVER]);
  if (count == 0) forbid_listed(logits, size, t->never_first, t->numbers[NEVER_FIRST]);
  if (times) apply_times(t, logits, size, l->tokens, count);
  else if (first < size) forbid(logits, first, known < size ? known : size);
  for (uint32_t i = 1; i < size; i++)
    if (logits[i] > logits[best]) best = i;
  return best;
}

/* The token of the likeliest language; TEXT_NONE where a run fails. */
static int32_t spoken_language(const SpeechListener *l, const Tokens *t) {
  const SpeechNetworks *n = &l->networks;
  const float *logits = logits_of(l, t->start, t->numbers[STARTS]);
  if (logits == NULL || n->run(n->runner, SPEECH_RESET) != 0) return TEXT_NONE;
  uint32_t best = t->languages[0];
  for (uint32_t i = 1; i < t->numbers[LANGUAGES]; i++)
    if (logits[t->languages[i]] > logits[best]) best = t->languages[i];
  return (int32_t)best;
}

/* Run the decoder on the tokens that it begins with; the number of these, or below 0 for a failure. */
static long begin(const SpeechListener *l, const Tokens *t, int times, float **logits) {
  uint32_t more[3], count = 0;
  if (language_count(l, t) > 0) {
    const char *given = l->options.language;
    const int32_t language = given != NULL ? language_token(l, t, given) : spoken_language(l, t);
    if (language == TEXT_NONE) return TENON_SPEECH_FAILED;
    more[count++] = (uint32_t)language;
    more[count++] = t->numbers[TRANSCRIBE];
  }
  if (!times && (int32_t)t->numbers[NO_TIMES] != TEXT_NONE) more[count++] = t->numbers[NO_TIMES];
  *logits = logits_of(l, t->start, t->numbers[STARTS]);
  if (*logits != NULL && count > 0) *logits = logits_of(l, more, count);
  return *logits == NULL ? TENON_SPEECH_FAILED : (long)(t->numbers[STARTS] + count);
}

long tenon_speech_tokens(SpeechListener *l, size_t count, int times) {
  const Tokens t = tokens_of(&l->text);
  float *logits = NULL;
  const int status = encode(l, count);
  if (status != 0) return status;
  const long started = begin(l, &t, times, &logits);
  if (started < 0) return started;
  long made = 0;
  while (made < l->networks.places.room - started) {
    const uint32_t token = choose(l, &t, logits, made, times);
    if (tenon_text_ends(&l->text, token)) break;
    l->tokens[made++] = token;
    logits = logits_of(l, &token, 1);
    if (logits == NULL) return TENON_SPEECH_FAILED;
  }
  return made;
}

/* ------------------------------------------------------------------------------------------------------------- text */

static int append(const char *piece, size_t length, void *user) {
  SpeechListener *l = (SpeechListener *)user;
  memcpy(l->words + l->word_bytes, piece, length);
  l->word_bytes += length;
  return 0;
}

/* Whether a code point is a space, as for Python's str.strip. */
static int is_space(uint32_t point) {
  return point == ' ' || (point >= 9 && point <= 13) || (point >= 0x1c && point <= 0x1f) || point == 0x85 || point == 0xa0 ||
         point == 0x1680 || (point >= 0x2000 && point <= 0x200a) || point == 0x2028 || point == 0x2029 || point == 0x202f ||
         point == 0x205f || point == 0x3000;
}

int tenon_speech_give(SpeechListener *l, long first, long end, double start, double finish, int is_final) {
  const uint32_t time = (uint32_t)tenon_speech_first_time(&l->text);
  TextOutput output = {append, l, NULL, l->partial, {0}, 0, 0, 0, 0};
  size_t from = 0, bytes, last = 0;
  l->word_bytes = 0;
  for (long i = first; i < end; i++) {
    const char *piece = tenon_text_piece(&l->text, l->tokens[i], &bytes);
    if (l->tokens[i] < time) tenon_text_put(&output, piece, bytes);
  }
  tenon_text_finish(&output);
  const uint8_t *words = (const uint8_t *)l->words;
  while (from < l->word_bytes && is_space(tenon_text_point(words + from, l->word_bytes - from, &bytes))) from += bytes;
  for (size_t at = from; at < l->word_bytes; at += bytes)
    if (!is_space(tenon_text_point(words + at, l->word_bytes - at, &bytes))) last = at + bytes;
  SpeechText text;
  memset(&text, 0, sizeof text);
  text.start = start;
  text.end = finish;
  text.text = l->words + from;
  text.bytes = last > from ? last - from : 0;
  text.final = is_final;
  return l->texts(&text, l->user) != 0 ? TENON_SPEECH_ENDED : 0;
}
