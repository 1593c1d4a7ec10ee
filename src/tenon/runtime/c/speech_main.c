/* Main program of networks that write down speech: prints what is said in a WAV file, or on standard input while it arrives.
   Exit status: 0, or 2 after one line on standard error. */

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef _WIN32
#include <fcntl.h>
#include <io.h>
#define isatty _isatty
#define read _read
#else
#include <fcntl.h>
#include <unistd.h>
#endif
#include TENON_SPEECH_HEADER
#include "program.h"
#include "wav.h"
#ifdef TENON_THREAD_POOL
#include "threads.h"
#endif

#if defined(__linux__) && !defined(F_SETPIPE_SZ)
#define F_SETPIPE_SZ 1031 /* which headers have with _GNU_SOURCE only */
#endif

enum { RATE = 16000, PART = RATE / 10, ARRIVED = 1 << 20 };

extern const uint8_t tenon_encoder_weights[];
extern const uint8_t tenon_decoder_weights[];

TENON_MEM_ALIGN(64) static uint8_t encoder[BYTES_OF(ENCODER_MUTABLE_MEM_SIZE)];
TENON_MEM_ALIGN(64) static uint8_t decoder[BYTES_OF(DECODER_MUTABLE_MEM_SIZE)];
TENON_MEM_ALIGN(64) static uint8_t scratch[BYTES_OF(SPEECH_ACTIVATIONS)];
static void *memory;

static const char HELP[] =
    " [options] SOUND.wav\n\nPrints what is said in a WAV file, or with --stream and without one, in samples of 16 bits on\n"
    "standard input, 16,000 in a second, as they arrive.\n\n"
    "  --stream         texts end where the speaker pauses\n"
    "  --language CODE  of the sound, e.g. en; without it, the network says it for each piece\n"
    "  --timestamps     also print when each part of what is said begins and ends\n"
    "  --json           print an object on each line: start, end, text and whether it is final\n"
#ifdef TENON_THREAD_POOL
    "  --threads N      threads (1)\n"
#endif
    ;

/* ------------------------------------------------------------------------------------------------------------ texts */

typedef struct {
  int with_times, as_json, is_terminal;
} Printing;

static void print_clock(double seconds) {
  const long long whole = llrint(1000 * seconds);
  printf("%02lld:%02lld:%02lld.%03lld", whole / 3600000, whole / 60000 % 60, whole / 1000 % 60, whole % 1000);
}

static void print_json(const OF_BUNDLE(_heard) *text) {
  printf("{\"start\": %.10g, \"end\": %.10g, \"text\": \"", text->start, text->end);
  for (size_t i = 0; i < text->bytes; i++) {
    const unsigned char byte = (unsigned char)text->text[i];
    if (byte < 0x20 || byte == 0x7f) printf("\\u%04x", byte);
    else if (byte == '"' || byte == '\\') printf("\\%c", byte);
    else putchar(byte);
  }
  printf("\", \"final\": %s}\n", text->final ? "true" : "false");
}

/* The end of a text that is not longer than a line of a terminal. */
static const char *last_line(const OF_BUNDLE(_heard) *text, size_t *length) {
  enum { WIDTH = 79 };
  size_t from = text->bytes > WIDTH ? text->bytes - WIDTH : 0;
  while (from > 0 && from < text->bytes && ((unsigned char)text->text[from] & 0xc0) == 0x80) from++;
  *length = text->bytes - from;
  return text->text + from;
}

static int print(const OF_BUNDLE(_heard) *text, void *user) {
  const Printing *how = (const Printing *)user;
  if (how->as_json) {
    print_json(text);
  } else if (text->final) {
    if (how->is_terminal) printf("\r\x1b[K");
    if (how->with_times) {
      printf("[");
      print_clock(text->start);
      printf(" --> ");
      print_clock(text->end);
      printf("]  ");
    }
    fwrite(text->text, 1, text->bytes, stdout);
    printf("\n");
  } else if (how->is_terminal) {
    size_t length;
    const char *line = last_line(text, &length);
    printf("\r\x1b[K");
    fwrite(line, 1, length, stdout);
  }
  return fflush(stdout) != 0;
}

static void check(int status) {
  if (status == OF_BUNDLE(_SPEECH_ENDED)) FAIL(strerror(errno), "cannot write the text");
  if (status != 0) FAIL("the network failed", "");
}

/* ------------------------------------------------------------------------------------------------------------ sound */

/* Samples in parts of a tenth of a second, as they would arrive. */
static float part[PART];
static size_t part_count;

static int hear(const float *samples, size_t count, void *user) {
  (void)user;
  for (size_t i = 0; i < count; i++) {
    part[part_count++] = samples[i];
    if (part_count < PART) continue;
    check(OF_BUNDLE(_hear)(memory, part, PART));
    part_count = 0;
  }
  return 0;
}

static void hear_file(const char *name) {
  double samples[1024];
  const int is_input = strcmp(name, "-") == 0;
  FILE *file = is_input ? stdin : fopen(name, "rb");
  WavFile wav;
  if (file == NULL) FAIL(strerror(errno), name);
  const char *problem = wav_open(&wav, file);
  if (problem != NULL) {
    fprintf(stderr, "%s: %s: not a readable WAV file (%s): give one of PCM or floats\n", STRING(TENON_ENTRY), name, problem);
    exit(2);
  }
  Resampler *converter = resampler_new(wav.rate, RATE, hear, NULL);
  if (converter == NULL) FAIL("there is not enough memory", "");
  for (size_t count; (count = wav_read(&wav, samples, sizeof samples / sizeof *samples)) > 0;)
    resampler_add(converter, samples, count);
  resampler_end(converter);
  if (part_count > 0) check(OF_BUNDLE(_hear)(memory, part, part_count));
  if (!is_input) fclose(file);
}

/* All samples that have arrived each time. */
static void hear_input(void) {
  static int16_t samples[ARRIVED / 2];
  uint8_t *bytes = (uint8_t *)samples;
  size_t rest = 0;
#ifdef F_SETPIPE_SZ
  (void)fcntl(0, F_SETPIPE_SZ, ARRIVED); /* half a minute, so that what writes never waits for the network */
#endif
#ifdef _WIN32
  _setmode(0, _O_BINARY);
#endif
  for (;;) {
    const long count = (long)read(0, bytes + rest, ARRIVED - (unsigned)rest);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) FAIL(strerror(errno), "cannot read standard input");
    if (count == 0) return;
    const size_t size = rest + (size_t)count;
    for (size_t i = 0; i < size / 2; i++) samples[i] = (int16_t)(bytes[2 * i] | bytes[2 * i + 1] << 8);
    check(OF_BUNDLE(_hear_pcm)(memory, samples, size / 2));
    rest = size % 2;
    bytes[0] = rest ? bytes[size - 1] : 0;
  }
}

/* ---------------------------------------------------------------------------------------------------------- program */

#ifdef TENON_THREAD_POOL
static TenonThreadPool *pools[2];

static int run(void *runner, int network) {
  (void)runner;
  return tenon_thread_pool_run(pools[network], network == 0 ? tenon_encoder_weights : tenon_decoder_weights,
                               network == 0 ? encoder : decoder, scratch);
}

static void start(const char *value) {
  char *end;
  const long threads = strtol(value, &end, 10);
  if (end == value || *end != 0 || threads < 1 || threads > BYTES_OF(ENCODER_MAX_THREADS)) FAIL("it takes a number of threads", value);
  pools[0] = tenon_thread_pool_start(OF_BUNDLE(_encoder_phase), OF_BUNDLE(_encoder_next), (int)threads);
  pools[1] = tenon_thread_pool_start(OF_BUNDLE(_decoder_phase), OF_BUNDLE(_decoder_next), (int)threads);
  if (pools[0] == NULL || pools[1] == NULL) FAIL("there is no memory for threads", "");
}
#endif

int main(int count, char **arguments) {
  OF_BUNDLE(_speech) speech = {tenon_text_tables, tenon_text_tables_size, tenon_encoder_weights, tenon_decoder_weights,
                               encoder, decoder, scratch, NULL, NULL};
  OF_BUNDLE(_listening) how = BYTES_OF(LISTENING);
  Printing printing = {0, 0, 0};
  const char *sound = NULL;
  for (int i = 1; i < count; i++) {
    const char *option = arguments[i];
    if (strcmp(option, "--help") == 0 || strcmp(option, "-h") == 0)
      return printf("usage: %s%s", STRING(TENON_ENTRY), HELP) < 0;
    if (strcmp(option, "--stream") == 0) how.live = 1;
    else if (strcmp(option, "--timestamps") == 0) how.times = printing.with_times = 1;
    else if (strcmp(option, "--json") == 0) printing.as_json = 1;
    else if (strncmp(option, "--", 2) != 0 && sound == NULL) sound = option;
    else if (strncmp(option, "--", 2) != 0) FAIL("give one sound", option);
    else if (++i == count) FAIL("it needs a value, or is no option: try --help", option);
    else if (strcmp(option, "--language") == 0) how.language = arguments[i];
#ifdef TENON_THREAD_POOL
    else if (strcmp(option, "--threads") == 0) start(arguments[i]), speech.run = run;
#endif
    else FAIL("there is no such option: try --help", option);
  }
  if (sound == NULL && !how.live) FAIL("give a WAV file, or --stream and samples on standard input: try --help", "");
  printing.is_terminal = !printing.as_json && isatty(1);
  const size_t size = OF_BUNDLE(_speech_memory)(&speech);
  memory = malloc(size + 1);
  if (memory == NULL) FAIL("there is not enough memory", "");
  const int status = OF_BUNDLE(_listen)(&speech, &how, print, &printing, memory, size);
  if (status == OF_BUNDLE(_SPEECH_NO_LANGUAGE)) FAIL("the network does not know this language", how.language);
  check(status);
  if (sound != NULL) hear_file(sound);
  else hear_input();
  check(OF_BUNDLE(_finish)(memory));
  return 0;
}
