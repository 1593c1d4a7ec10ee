/* Opens a bundle, writes its inputs and runs it: opening BUNDLE [RUNS [cpu]].  Prints milliseconds: opening, the first run, the
   fastest of the later ones, all of them with writing of the inputs; by the clock, or with "cpu" of the processor. */

#define _POSIX_C_SOURCE 199309L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tenon.h>
#include <time.h>

static clockid_t kind = CLOCK_MONOTONIC;

static double milliseconds(void) {
  struct timespec now;
  clock_gettime(kind, &now);
  return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

/* Functions that valgrind counts the instructions of, by these names. */
__attribute__((noinline)) static int open_bundle(const char *path, TenonBundle **bundle, TenonEngine **engine) {
  TenonEngineOptions options = TENON_ENGINE_OPTIONS_INIT;
  options.threads = 1;
  return tenon_bundle_open(path, NULL, bundle) == TENON_OK && tenon_engine_create(*bundle, &options, engine) == TENON_OK;
}

__attribute__((noinline)) static int run_engine(TenonBundle *bundle, TenonEngine *engine) {
  for (int i = 0; i < tenon_bundle_input_count(bundle); i++) {
    TenonTensor input;
    void *data;
    if (tenon_engine_input(engine, i, &input) != TENON_OK || tenon_engine_input_data(engine, i, &data) != TENON_OK) return 0;
    memset(data, 0, (size_t)input.bytes);
  }
  return tenon_engine_run(engine) == TENON_OK;
}

int main(int count, char **words) {
  TenonBundle *bundle;
  TenonEngine *engine;
  if (count < 2) return 2;
  if (count > 3 && strcmp(words[3], "cpu") == 0) kind = CLOCK_PROCESS_CPUTIME_ID;
  const double begin = milliseconds();
  if (!open_bundle(words[1], &bundle, &engine)) return fprintf(stderr, "%s\n", tenon_last_error()), 1;
  const double opened = milliseconds();
  if (!run_engine(bundle, engine)) return 1;
  const double answered = milliseconds();
  double least = 1e9;
  for (int i = count > 2 ? atoi(words[2]) : 0; i > 0; i--) {
    const double start = milliseconds();
    if (!run_engine(bundle, engine)) return 1;
    const double time = milliseconds() - start;
    if (time < least) least = time;
  }
  printf("%.4f %.4f %.4f\n", opened - begin, answered - opened, least);
  return 0;
}
