/* Runs a bundle on standard input in every way that tenon.h has, and writes the first output to standard output. */

#include "require.h"
#include "tenon.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(call)                                                                                          \
  do {                                                                                                       \
    const TenonStatus status_ = (call);                                                                      \
    if (status_ != TENON_OK) {                                                                               \
      fprintf(stderr, "%s: %s: %s\n", #call, tenon_status_name(status_), tenon_last_error());                \
      exit(1);                                                                                               \
    }                                                                                                        \
  } while (0)

static int left, may_end;

static void again(TenonEngine *engine, TenonStatus status, void *context) {
  ENSURE(status == TENON_OK && context == &left);
  ENSURE(tenon_engine_wait(engine, -1) == TENON_WRONG_STATE);
  ENSURE(tenon_engine_destroy(engine) == TENON_BUSY);
  if (--left > 0) CHECK(tenon_engine_run_async(engine, again, context));
}

static void lasting(TenonEngine *engine, TenonStatus status, void *context) {
  ENSURE(engine != NULL && status == TENON_OK && context == NULL);
  while (!__atomic_load_n(&may_end, __ATOMIC_ACQUIRE)) tenon_abi_version();
}

static void compare(TenonEngine *engine, const void *expected, size_t bytes, int line) {
  void *answer = malloc(bytes);
  CHECK(tenon_engine_get_output(engine, 0, answer, bytes));
  if (memcmp(answer, expected, bytes) != 0) {
    fprintf(stderr, "%d: another result\n", line);
    exit(1);
  }
  free(answer);
}

static void clear(TenonEngine *engine) {
  void *data;
  TenonMemory memory;
  (void)memory;
  CHECK(tenon_engine_output_data(engine, 0, &data));
  *(unsigned char *)data ^= 0x55;
}

static TenonBundle *opened(const char *path) {
  TenonBundle *bundle;
  if (strncmp(path, "memory:", 7) != 0) {
    CHECK(tenon_bundle_open(path, NULL, &bundle));
    return bundle;
  }
  static unsigned char data[1 << 22]; /* at an odd address, so that the weights are copied */
  FILE *file = fopen(path + 7, "rb");
  ENSURE(file != NULL);
  const size_t size = fread(data + 1, 1, sizeof data - 1, file);
  fclose(file);
  CHECK(tenon_bundle_open_memory(data + 1, size, NULL, &bundle));
  return bundle;
}

int main(int count, char **words) {
  ENSURE(count == 2 && tenon_abi_version() == TENON_ABI_VERSION && strcmp(tenon_version(), TENON_VERSION) == 0);
  TenonBundle *bundle = opened(words[1]);
  TenonTensor input, output;
  CHECK(tenon_bundle_input(bundle, 0, 0, &input));
  CHECK(tenon_bundle_output(bundle, 0, 0, &output));
  const size_t in = (size_t)input.bytes, out = (size_t)output.bytes;
  unsigned char *given = malloc(in), *expected = malloc(out), *bound = calloc(1, out);
  ENSURE(fread(given, 1, in, stdin) == in);

  TenonEngine *engine, *second, *third;
  CHECK(tenon_engine_create(bundle, NULL, &engine));
  CHECK(tenon_engine_set_input(engine, 0, given, in));
  CHECK(tenon_engine_run(engine));
  CHECK(tenon_engine_get_output(engine, 0, expected, out));
  CHECK(tenon_engine_release_memory(engine));
  clear(engine);
  CHECK(tenon_engine_run(engine));
  compare(engine, expected, out, __LINE__);

  /* An engine with other threads, the same weights and the same memory for intermediate results. */
  TenonEngineOptions options = TENON_ENGINE_OPTIONS_INIT;
  options.threads = tenon_bundle_max_threads(bundle) < 2 ? 1 : 2;
  options.share_activations = engine;
  options.cores = TENON_ALL_CORES;
  CHECK(tenon_engine_create(bundle, &options, &second));
  CHECK(tenon_engine_create(bundle, &options, &third));
  CHECK(tenon_bundle_close(bundle)); /* the engines keep what they need */
  CHECK(tenon_engine_bind_input(second, 0, given, in));
  CHECK(tenon_engine_bind_output(second, 0, bound, out));
  CHECK(tenon_engine_run(second));
  ENSURE(memcmp(bound, expected, out) == 0);
  CHECK(tenon_engine_bind_output(second, 0, NULL, 0));

  /* On the engine's own thread, twenty runs from callbacks, while the other engine runs as well. */
  left = 20;
  clear(second);
  ENSURE(tenon_engine_wait(second, 0) == TENON_WRONG_STATE);
  CHECK(tenon_engine_run_async(second, again, &left));
  for (int i = 0; i < 20; i++) CHECK(tenon_engine_run(engine));
  CHECK(tenon_engine_wait(second, -1));
  ENSURE(left == 0);
  compare(second, expected, out, __LINE__);
  compare(engine, expected, out, __LINE__);
  ENSURE(tenon_engine_wait(second, 0) == TENON_WRONG_STATE);

  /* A run whose callback lasts: waiting ends with the time that it was given, and nothing else starts. */
  CHECK(tenon_engine_run_async(second, lasting, NULL));
  ENSURE(tenon_engine_wait(second, 30) == TENON_TIMEOUT);
  ENSURE(tenon_engine_wait(second, 0) == TENON_TIMEOUT);
  ENSURE(tenon_engine_run(second) == TENON_BUSY && tenon_engine_run_async(second, NULL, NULL) == TENON_BUSY);
  ENSURE(tenon_engine_set_input(second, 0, given, in) == TENON_BUSY && tenon_engine_destroy(NULL) != TENON_OK);
  __atomic_store_n(&may_end, 1, __ATOMIC_RELEASE);
  CHECK(tenon_engine_wait(second, 60000));
  CHECK(tenon_engine_run_async(second, NULL, NULL)); /* destroying waits for it */
  CHECK(tenon_engine_destroy(second));
  CHECK(tenon_engine_destroy(engine));

  /* The memory that it shared outlives the engine that brought it. */
  CHECK(tenon_engine_set_input(third, 0, given, in));
  for (int i = 0; i < 2; i++) {
    CHECK(tenon_engine_run(third));
    compare(third, expected, out, __LINE__);
    CHECK(tenon_engine_release_memory(third));
  }
  CHECK(tenon_engine_destroy(third));
  fwrite(expected, 1, out, stdout);
  free(given), free(expected), free(bound);
  return 0;
}
