/* Runs a bundle for a device, given as a path, twice, times it, and runs it in a child process; says what came of it.
   Further arguments: its target, and lines for the GPU.
   The only input is all zeros but for its first element, a float. */

#define _POSIX_C_SOURCE 200809L
#include "require.h"
#include "tenon.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void report(const char *what, TenonStatus status) {
  printf("%s: %s%s%s\n", what, tenon_status_name(status), status ? ": " : "", status ? tenon_last_error() : "");
  fflush(stdout);
}

static void run(TenonEngine *engine, const char *what) {
  void *input, *output;
  ENSURE(tenon_engine_input_data(engine, 0, &input) == TENON_OK);
  ENSURE(tenon_engine_output_data(engine, 0, &output) == TENON_OK);
  *(float *)input = 0.5f;
  const TenonStatus status = tenon_engine_run(engine);
  report(what, status);
  if (status == TENON_OK) printf("%.5f\n", *(float *)output);
  fflush(stdout);
}

int main(int count, char **words) {
  TenonBundle *bundle;
  TenonEngine *engine;
  TenonOpenOptions options = TENON_OPEN_OPTIONS_INIT;
  uint64_t nanoseconds[64];
  options.target = count > 2 ? words[2] : NULL;
  report("open", tenon_bundle_open(words[1], &options, &bundle));
  TenonEngineOptions how = TENON_ENGINE_OPTIONS_INIT;
  how.gpu = count > 3 ? words[3] : NULL;
  ENSURE(tenon_engine_create(bundle, &how, &engine) == TENON_OK);
  const char *device = tenon_bundle_device(bundle);
  printf("device: %s\n", device == NULL ? "none, but the processor" : device[0] ? device : tenon_last_error());
  report("prepare", tenon_engine_prepare(engine));
  run(engine, "run");
  run(engine, "run");
  const int steps = tenon_bundle_step_count(bundle);
  ENSURE(steps > 0 && steps < 64);
  report("times", tenon_engine_profile(engine, nanoseconds, (size_t)steps));
  const pid_t child = fork();
  if (child == 0) {
    run(engine, "child");
    ENSURE(tenon_engine_destroy(engine) == TENON_OK);
    fflush(stdout);
    _exit(0);
  }
  int ended;
  ENSURE(waitpid(child, &ended, 0) == child && ended == 0);
  ENSURE(tenon_engine_release_memory(engine) == TENON_OK);
  run(engine, "again");
  ENSURE(tenon_engine_destroy(engine) == TENON_OK && tenon_bundle_close(bundle) == TENON_OK);
  return 0;
}
