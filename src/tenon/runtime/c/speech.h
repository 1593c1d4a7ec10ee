/* Speech to text while it arrives: an encoder that runs once for a piece of sound, and a decoder that runs once for a
   token.  Texts are those of runtime/speech in Python. */

#ifndef TENON_SPEECH_H
#define TENON_SPEECH_H

#include "text_output.h"
#include "text_tables.h"

enum { SPEECH_RATE = 16000 }; /* samples in a second */

/* Results of functions other than 0: the function for texts wanted no more; the tables are damaged, or those of a
   network that does not write down speech; `size` is too small; the network failed; there is no such language. */
enum {
  TENON_SPEECH_ENDED = 1,
  TENON_SPEECH_DAMAGED = -2,
  TENON_SPEECH_NO_MEMORY = -3,
  TENON_SPEECH_FAILED = -4,
  TENON_SPEECH_NO_LANGUAGE = -5
};

/* The words from `start` to `end`, in seconds: `bytes` of UTF-8 that no zero follows; unless it is final, it may change
   with what follows.  SPEECH_TEXT may name a type of the program's that is alike. */
#ifdef SPEECH_TEXT
typedef SPEECH_TEXT SpeechText;
#else
typedef struct {
  double start, end;
  const char *text;
  size_t bytes;
  int32_t final, reserved_[9];
} SpeechText;
#endif

/* Keys or values of the encoder's output that the decoder takes: where they lie in the mutable regions, the bytes of a
   position, and for each of `rows` the bytes from one to the next. */
typedef struct {
  size_t from, to, rows, from_step, to_step, position;
} SpeechCross;

/* Where inputs and outputs of the networks lie in their mutable regions; SPEECH_NOWHERE for those that they lack. */
#define SPEECH_NOWHERE ((size_t)-1)
typedef struct {
  size_t samples, sample_count;   /* of the encoder: f32 [1, most], and how many of them there are */
  size_t encoded, most_encoded;   /* of the encoder: how many positions it gives, and the most */
  size_t positions, token, logits; /* of the decoder */
  size_t least, most;             /* samples that the encoder takes */
  uint32_t vocabulary;
  long room; /* tokens that the caches of the decoder have room for */
  const SpeechCross *cross;
  int cross_count;
} SpeechPlaces;

/* The networks: `run` runs one of them, or gives the decoder's states their initial content.  It returns 0, or anything
   else for a failure. */
enum { SPEECH_ENCODE, SPEECH_DECODE, SPEECH_RESET };
typedef struct {
  SpeechPlaces places;
  uint8_t *encoder, *decoder; /* the mutable regions */
  int (*run)(void *runner, int what);
  void *runner;
} SpeechNetworks;

typedef struct {
  const char *language; /* "en", or NULL: the network says it for each piece */
  int is_live;          /* whether texts end where the speaker pauses, and those that may change are given as well; or a
                           sound is cut only where it is longer than the encoder takes */
  int with_times;       /* whether each part has its own times, where the network knows them and the sound is not live */
  double step, pause;   /* live: seconds from one text that may change to the next, and without a voice before a final one */
} SpeechOptions;

typedef int SpeechTexts(const SpeechText *text, void *user);

enum { SPEECH_FRAME = SPEECH_RATE / 50, SPEECH_REMEMBERED = 150, SPEECH_SEARCHED = 250 };

/* A sound that is being written down. */
typedef struct {
  TenonText text;
  SpeechNetworks networks;
  SpeechOptions options;
  SpeechTexts *texts;
  void *user;
  double levels[SPEECH_REMEMBERED]; /* mean squares of the last frames */
  int level, is_spoken;
  size_t step, pause, before, most; /* samples, but `before`: frames */
  int64_t begin;                    /* the samples before the first that is held */
  size_t held, frames;              /* samples, and the frames of these that were looked at */
  size_t quiet, fresh;              /* samples since the last voice, and since the last text */
  float *samples;
  uint32_t *tokens;
  char *words, *partial;
  size_t word_bytes;
} SpeechListener;

/* The bytes of memory for samples, tokens and texts. */
size_t tenon_speech_memory(const TenonText *text, const SpeechPlaces *places);

/* Begin with a sound.  `memory` are `size` bytes at a multiple of 8. */
int tenon_speech_begin(SpeechListener *listener, const TenonText *text, const SpeechNetworks *networks,
                       const SpeechOptions *options, SpeechTexts *texts, void *user, void *memory, size_t size);

/* Take the next samples of -1 to 1, any number at once, and give the texts that there are now; the last of them may be
   one that is not final. */
int tenon_speech_hear(SpeechListener *listener, const float *samples, size_t count);
int tenon_speech_hear_pcm(SpeechListener *listener, const int16_t *samples, size_t count); /* of 16 bits */

/* Give the text of what is left where the sound has ended; the next samples are those of another one behind it. */
int tenon_speech_finish(SpeechListener *listener);

/* ---- tokens (speech_tokens.c) */
/* The tokens of the first `count` samples that are held, of which there are so many, or one of the numbers above; with
   `times`, tokens of times among them, where the network knows them. */
long tenon_speech_tokens(SpeechListener *listener, size_t count, int times);

/* Give the text of tokens from `first` up to `end`, without spaces around it. */
int tenon_speech_give(SpeechListener *listener, long first, long end, double start, double finish, int is_final);

/* The token of the time 0, behind which those of later times follow; TEXT_NONE if the network knows none. */
int32_t tenon_speech_first_time(const TenonText *text);

/* Whether there are tokens for speech, and the language if one is given. */
int tenon_speech_check(const SpeechListener *listener);

#endif
