/* open_model FILE [key=FILE] [shapes=N] [ignore|collect] [inputs=N]: opens a model and runs it, and prints the number of
   its bindings.  shapes=N: x=1,64 ... x=N,64.  ignore, collect: the program ignores SIGCHLD, or its handler collects the
   status of every child.  inputs=N: selects the shape 3 for each of N inputs of rank 1 first. */

#define _POSIX_C_SOURCE 200112L
#include "tenon.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

enum { MOST = 400 };

static void collect(int number) {
  (void)number;
  while (waitpid(-1, NULL, WNOHANG) > 0) {
  }
}

static int failed(const char *what) {
  fprintf(stderr, "%s: %s\n", what, tenon_last_error());
  return 1;
}

int main(int count, char **words) {
  static const char *shapes[MOST + 1];
  static char texts[MOST][40];
  static int64_t extents[MOST];
  TenonOpenOptions options = TENON_OPEN_OPTIONS_INIT;
  TenonBundle *bundle;
  TenonEngine *engine;
  size_t inputs = 0;
  for (int i = 2; i < count; i++) {
    if (strncmp(words[i], "key=", 4) == 0) options.key_file = words[i] + 4;
    else if (strcmp(words[i], "ignore") == 0) signal(SIGCHLD, SIG_IGN);
    else if (strcmp(words[i], "collect") == 0) signal(SIGCHLD, collect);
    else if (strncmp(words[i], "inputs=", 7) == 0) inputs = (size_t)atoi(words[i] + 7);
    else if (strncmp(words[i], "shapes=", 7) == 0) {
      for (int k = 0; k < atoi(words[i] + 7); k++) snprintf(texts[k], sizeof *texts, "x=%d,64", k + 1), shapes[k] = texts[k];
      options.shapes = shapes;
    }
  }
  for (size_t i = 0; i < inputs; i++) extents[i] = 3;
  if (tenon_bundle_open(words[1], &options, &bundle) != TENON_OK) return failed("open");
  if (tenon_engine_create(bundle, NULL, &engine) != TENON_OK) return failed("create");
  if (inputs > 0 && tenon_engine_select_shapes(engine, extents, inputs) != TENON_OK) return failed("select");
  if (tenon_engine_run(engine) != TENON_OK) return failed("run");
  printf("%d\n", tenon_bundle_binding_count(bundle));
  tenon_engine_destroy(engine);
  tenon_bundle_close(bundle);
  return 0;
}
