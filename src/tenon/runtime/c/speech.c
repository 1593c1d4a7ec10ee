#include "speech.h"
#include <string.h>

/* Mean squares, which decibels are logarithms of: the background before any is heard, how much louder a voice is than the
   background, and what is silence in any case. */
static const double QUIET = 1e-5, ABOVE = 10, LEAST = 3.1622776601683795e-6, NOTHING = 1e-10;
enum { BEFORE = 20 }; /* frames that are kept before a voice, at most; a quarter of what a network takes where that is less */

static size_t sample_bytes(const SpeechPlaces *p) { return (p->most + SPEECH_FRAME + 2) / 2 * 2 * sizeof(float); }

static size_t token_bytes(const SpeechPlaces *p) { return ((size_t)p->room + 2) / 2 * 2 * sizeof(uint32_t); }

/* A token that is no text becomes at most three bytes for each of its own. */
static size_t word_bytes(const TenonText *text, const SpeechPlaces *p) {
  return ((size_t)p->room + 1) * 3 * text->head[TEXT_LONGEST] + 8;
}

size_t tenon_speech_memory(const TenonText *text, const SpeechPlaces *p) {
  const size_t held = tenon_text_held_bytes(NULL, text->head[TEXT_LONGEST]);
  return sample_bytes(p) + token_bytes(p) + word_bytes(text, p) + held + 8;
}

static void forget(SpeechListener *l) {
  l->held = l->frames = l->quiet = l->fresh = 0;
  l->is_spoken = 0;
}

int tenon_speech_begin(SpeechListener *l, const TenonText *text, const SpeechNetworks *networks,
                       const SpeechOptions *options, SpeechTexts *texts, void *user, void *memory, size_t size) {
  const SpeechPlaces *p = &networks->places;
  uint8_t *at = (uint8_t *)memory;
  if (size < tenon_speech_memory(text, p)) return TENON_SPEECH_NO_MEMORY;
  l->text = *text;
  l->networks = *networks;
  l->options = *options;
  l->texts = texts;
  l->user = user;
  l->samples = (float *)memory;
  l->tokens = (uint32_t *)(void *)(at + sample_bytes(p));
  l->words = (char *)at + sample_bytes(p) + token_bytes(p);
  l->partial = l->words + word_bytes(text, p);
  l->step = (size_t)(options->step * SPEECH_RATE);
  l->pause = (size_t)(options->pause * SPEECH_RATE);
  l->most = options->is_live ? p->most / SPEECH_FRAME * SPEECH_FRAME : p->most;
  l->before = p->most / SPEECH_FRAME / 4 < BEFORE ? p->most / SPEECH_FRAME / 4 : BEFORE;
  for (int i = 0; i < SPEECH_REMEMBERED; i++) l->levels[i] = QUIET;
  l->level = 0;
  l->begin = 0;
  forget(l);
  return tenon_speech_check(l);
}

/* ----------------------------------------------------------------------------------------------------------- pieces */

static double energy(const float *samples, size_t count) {
  double sum = 0;
  for (size_t i = 0; i < count; i++) sum += (double)samples[i] * (double)samples[i];
  return sum;
}

/* The middle of the quietest fifth of a second among the last five seconds of `count` samples, at most half of these. */
static size_t quietest(const SpeechListener *l, size_t count) {
  double frames[SPEECH_SEARCHED], least = 0;
  const size_t most = SPEECH_SEARCHED * SPEECH_FRAME, searched = count / 2 < most ? count / 2 : most;
  const size_t first = count - searched, number = searched / SPEECH_FRAME, width = number < 10 ? number : 10;
  size_t best = 0;
  for (size_t i = 0; i < number; i++) frames[i] = energy(l->samples + first + i * SPEECH_FRAME, SPEECH_FRAME);
  for (size_t i = 0; i + width <= number; i++) {
    double sum = 0;
    for (size_t j = 0; j < width; j++) sum += frames[i + j];
    if (i == 0 || sum < least) best = i, least = sum;
  }
  return first + (best + width / 2) * SPEECH_FRAME;
}

/* Leave out the first samples that are held. */
static void drop(SpeechListener *l, size_t count) {
  l->held -= count;
  l->begin += (int64_t)count;
  memmove(l->samples, l->samples + count, l->held * sizeof *l->samples);
}

/* Give the texts of segments between tokens of times. */
static int write_segments(SpeechListener *l, long count, double start, double seconds) {
  const uint32_t first = (uint32_t)tenon_speech_first_time(&l->text);
  double begin = 0;
  long words = 0;
  int status = 0;
  for (long i = 0; i < count && status == 0; i++) {
    if (l->tokens[i] < first) continue;
    double time = (double)(l->tokens[i] - first) * 0.02;
    if (time > seconds) time = seconds;
    if (i > words) status = tenon_speech_give(l, words, i, start + begin, start + (time > begin ? time : begin), 1);
    begin = time;
    words = i + 1;
  }
  if (status == 0 && count > words)
    status = tenon_speech_give(l, words, count, start + begin, start + (seconds > begin ? seconds : begin), 1);
  return status;
}

/* Give the text of the first samples that are held. */
static int write_down(SpeechListener *l, size_t count, int is_final) {
  const double start = (double)l->begin / SPEECH_RATE, end = (double)(l->begin + (int64_t)count) / SPEECH_RATE;
  const int times = !l->options.is_live && l->options.with_times && tenon_speech_first_time(&l->text) != TEXT_NONE;
  const long made = tenon_speech_tokens(l, count, times);
  if (made < 0) return (int)made;
  if (times) return write_segments(l, made, start, (double)count / SPEECH_RATE);
  return tenon_speech_give(l, 0, made, start, end, is_final);
}

/* ------------------------------------------------------------------------------------------------------------- live */

/* Whether a frame is louder than the background, which is the quietest of the last frames. */
static int speaks(SpeechListener *l, const float *frame) {
  const double level = energy(frame, SPEECH_FRAME) / SPEECH_FRAME + NOTHING;
  l->levels[l->level] = level;
  l->level = (l->level + 1) % SPEECH_REMEMBERED;
  double least = l->levels[0];
  for (int i = 1; i < SPEECH_REMEMBERED; i++)
    if (l->levels[i] < least) least = l->levels[i];
  return level > LEAST && level > least * ABOVE;
}

/* Keep so many frames, the last ones. */
static void keep(SpeechListener *l, size_t frames) {
  if (l->frames <= frames) return;
  drop(l, (l->frames - frames) * SPEECH_FRAME);
  l->frames = frames;
}

/* Look at the last frame, with which the samples that are held end. */
static int take_frame(SpeechListener *l) {
  const int is_voice = speaks(l, l->samples + l->frames * SPEECH_FRAME);
  int status = 0;
  l->frames++;
  l->fresh += SPEECH_FRAME;
  l->quiet = is_voice ? 0 : l->quiet + SPEECH_FRAME;
  l->is_spoken |= is_voice;
  if (!l->is_spoken) {
    keep(l, l->before);
  } else if (l->quiet >= l->pause) {
    status = write_down(l, l->held, 1);
    keep(l, l->before);
    l->is_spoken = 0;
    l->fresh = 0;
  } else if (l->held >= l->most) {
    size_t frames = quietest(l, l->held) / SPEECH_FRAME;
    if (frames == 0) frames = 1;
    status = write_down(l, frames * SPEECH_FRAME, 1);
    keep(l, l->frames - frames);
    l->fresh = l->held;
  }
  return status;
}

/* Samples as they are given, of either type. */
typedef struct {
  const float *floats;
  const int16_t *integers;
} Given;

static void copy(float *to, const Given *given, size_t first, size_t count) {
  if (given->floats != NULL) memcpy(to, given->floats + first, count * sizeof *to);
  for (size_t i = 0; given->floats == NULL && i < count; i++) to[i] = (float)given->integers[first + i] / 32768.0f;
}

static int hear_live(SpeechListener *l, const Given *given, size_t count) {
  int status = 0;
  for (size_t done = 0, taken; done < count && status == 0; done += taken) {
    const size_t missing = (l->frames + 1) * SPEECH_FRAME - l->held;
    taken = count - done < missing ? count - done : missing;
    copy(l->samples + l->held, given, done, taken);
    l->held += taken;
    if (taken == missing) status = take_frame(l);
  }
  if (status != 0 || !l->is_spoken || l->fresh < l->step) return status;
  l->fresh = 0;
  return write_down(l, l->frames * SPEECH_FRAME, 0);
}

/* A piece is cut when a sample behind the longest one is there. */
static int hear_all(SpeechListener *l, const Given *given, size_t count) {
  int status = 0;
  for (size_t done = 0, taken; done < count && status == 0; done += taken) {
    const size_t missing = l->most + 1 - l->held;
    taken = count - done < missing ? count - done : missing;
    copy(l->samples + l->held, given, done, taken);
    l->held += taken;
    if (taken < missing) break;
    const size_t end = quietest(l, l->most);
    status = write_down(l, end, 1);
    drop(l, end);
  }
  return status;
}

static int hear(SpeechListener *l, Given given, size_t count) {
  return l->options.is_live ? hear_live(l, &given, count) : hear_all(l, &given, count);
}

int tenon_speech_hear(SpeechListener *l, const float *samples, size_t count) {
  const Given given = {samples, NULL};
  return hear(l, given, count);
}

int tenon_speech_hear_pcm(SpeechListener *l, const int16_t *samples, size_t count) {
  const Given given = {NULL, samples};
  return hear(l, given, count);
}

int tenon_speech_finish(SpeechListener *l) {
  const int is_left = l->options.is_live ? l->is_spoken : l->held > 0;
  const int status = is_left ? write_down(l, l->held, 1) : 0;
  l->begin += (int64_t)l->held;
  forget(l);
  return status;
}
