/* Main program of language models: goes on with a prompt and prints the text as it is generated.
   Exit status: 0, or 2 after one line on standard error. */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include TENON_TEXT_HEADER
#ifdef TENON_THREAD_POOL
#include "threads.h"
#endif

#define TENON_JOIN_(a, b) a##b
#define TENON_JOIN(a, b) TENON_JOIN_(a, b)
#define OF_BUNDLE(what) TENON_JOIN(TENON_ENTRY, what)
#define BYTES_OF(what) TENON_JOIN(TENON_PREFIX, what)
#define STRING_(a) #a
#define STRING(a) STRING_(a)

extern const uint8_t tenon_weights[];
extern const uint8_t tenon_text_tables[];
extern const size_t tenon_text_tables_size;

TENON_MEM_ALIGN(64) static uint8_t network[BYTES_OF(MUTABLE_MEM_SIZE)];
TENON_MEM_ALIGN(64) static uint8_t scratch[BYTES_OF(ACTIVATIONS_MEM_SIZE)];

static void fail(const char *what, const char *value) {
  fprintf(stderr, "%s: %s%s%s\n", STRING(TENON_ENTRY), value, *value ? ": " : "", what);
  exit(2);
}

static double number(const char *option, const char *text, double least, double most) {
  char *end;
  double value = strtod(text, &end);
  char limits[64];
  snprintf(limits, sizeof limits, "it takes a number from %g to %g", least, most);
  if (end == text || *end != 0 || !(value >= least && value <= most)) fail(limits, option);
  return value;
}

static int print(const char *piece, size_t length, void *user) {
  (void)user;
  fwrite(piece, 1, length, stdout);
  return fflush(stdout) != 0;
}

static const char HELP[] =
    " [options] PROMPT\n\nGoes on with a text.  Without PROMPT, it is read from standard input.\n\n"
    "  --max-tokens N          most tokens (until the text ends)\n"
    "  --temperature T         0 takes the most probable token (0)\n"
    "  --top-k N               choose among so many tokens; 0: all (0)\n"
    "  --top-p P               choose among the tokens whose probabilities add up to this (1)\n"
    "  --min-p P               least probability relative to the most probable token (0)\n"
    "  --repetition-penalty R  divides the logits of tokens that occurred (1)\n"
    "  --seed N                makes choices repeatable (the time)\n"
#ifdef TENON_THREAD_POOL
    "  --threads N             threads (1)\n"
#endif
    ;

#ifdef TENON_THREAD_POOL
static TenonThreadPool *pools[OF_BUNDLE(_ENTRIES)];

static void start(int threads) {
  for (int i = 0; i < OF_BUNDLE(_ENTRIES); i++) {
    pools[i] = tenon_thread_pool_start(OF_BUNDLE(_text_phases)[i], OF_BUNDLE(_text_nexts)[i], threads);
    if (pools[i] == NULL) fail("there is no memory for threads", "");
  }
}

static int run(void *runner, int entry) {
  (void)runner;
  return tenon_thread_pool_run(pools[entry], tenon_weights, network, scratch);
}
#endif

static char *standard_input(void) {
  size_t room = 1 << 12, size = 0;
  char *text = malloc(room);
  while (text != NULL) {
    size += fread(text + size, 1, room - size - 1, stdin);
    if (size + 1 < room) break;
    text = realloc(text, room *= 2);
  }
  if (text == NULL) fail("there is no memory for the prompt", "");
  while (size > 0 && text[size - 1] == '\n') size--;
  text[size] = 0;
  return text;
}

int main(int count, char **arguments) {
  OF_BUNDLE(_text) text = {tenon_text_tables, tenon_text_tables_size, tenon_weights, network, scratch, NULL, NULL};
  OF_BUNDLE(_sampling) how = TENON_GREEDY;
  const char *prompt = NULL;
  long most = -1;
  how.state = (uint64_t)time(NULL);
  for (int i = 1; i < count; i++) {
    const char *option = arguments[i];
    if (strcmp(option, "--help") == 0) return printf("usage: %s%s", STRING(TENON_ENTRY), HELP) < 0;
    if (strncmp(option, "--", 2) != 0) {
      if (prompt != NULL) fail("give one prompt, in quotes", option);
      prompt = option;
      continue;
    }
    if (++i == count) fail("it needs a value, or is no option: try --help", option);
    const char *value = arguments[i];
    if (strcmp(option, "--max-tokens") == 0) most = (long)number(option, value, 0, 1e9);
    else if (strcmp(option, "--temperature") == 0) how.temperature = number(option, value, 0, 100);
    else if (strcmp(option, "--top-k") == 0) how.top_k = (uint32_t)number(option, value, 0, 1e9);
    else if (strcmp(option, "--top-p") == 0) how.top_p = number(option, value, 0, 1);
    else if (strcmp(option, "--min-p") == 0) how.min_p = number(option, value, 0, 1);
    else if (strcmp(option, "--repetition-penalty") == 0)
      how.repetition_penalty = (float)number(option, value, 0.01, 100);
    else if (strcmp(option, "--seed") == 0) how.state = (uint64_t)number(option, value, 0, 9e15);
#ifdef TENON_THREAD_POOL
    else if (strcmp(option, "--threads") == 0) start((int)number(option, value, 1, BYTES_OF(MAX_THREADS))), text.run = run;
#endif
    else fail("there is no such option: try --help", option);
  }
  if (prompt == NULL) prompt = standard_input();
  size_t size = OF_BUNDLE(_text_memory)(&text, strlen(prompt));
  void *memory = malloc(size + 1);
  if (memory == NULL) fail("there is not enough memory", "");
  switch (OF_BUNDLE(_generate)(&text, &how, prompt, most, print, NULL, memory, size)) {
    case OF_BUNDLE(_TEXT_LONG): fail("the prompt is empty or too long", "");
    case OF_BUNDLE(_TEXT_FAILED): fail("the network failed", "");
    default: break;
  }
  if (printf("\n") < 0 || fflush(stdout) != 0) fail(strerror(errno), "cannot write the text");
  return 0;
}
