/* Threads of one program open the same bundle or model at the same time, and run engines of it.
   Arguments: the file, the number of threads.  Writes the output, which is that of all of them. */

#define _POSIX_C_SOURCE 200112L /* barriers */
#include "tenon.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "require.h"

enum { MOST = 16, ROUNDS = 3 };

typedef struct {
  pthread_t id;
  int number;
  TenonBundle *bundle;
  TenonEngine *engine;
  unsigned char *output;
} Worker;

static const char *path;
static unsigned char *given;
static size_t given_bytes;
static pthread_barrier_t together;

static void check(TenonStatus status) {
  if (status != TENON_OK) fprintf(stderr, "%s\n", tenon_last_error());
  ENSURE(status == TENON_OK);
}

static void fails(Worker *worker) { /* with a text of this thread's own */
  char number[16];
  snprintf(number, sizeof number, "%d", 1000 + worker->number);
  ENSURE(tenon_engine_select(worker->engine, 1000 + worker->number) == TENON_NOT_FOUND);
  ENSURE(strstr(tenon_last_error(), number) != NULL);
}

static void *work(void *argument) {
  Worker *worker = argument;
  TenonTensor input, output;
  TenonEngineOptions options = TENON_ENGINE_OPTIONS_INIT;
  pthread_barrier_wait(&together);
  check(tenon_bundle_open(path, NULL, &worker->bundle));
  check(tenon_bundle_input(worker->bundle, 0, 0, &input));
  check(tenon_bundle_output(worker->bundle, 0, 0, &output));
  ENSURE(input.bytes == given_bytes);
  worker->output = malloc((size_t)output.bytes);
  options.threads = worker->number % 2 + 1;
  for (int i = 0; i < ROUNDS; i++) {
    check(tenon_engine_create(worker->bundle, &options, &worker->engine));
    check(tenon_engine_set_input(worker->engine, 0, given, given_bytes));
    check(tenon_engine_run(worker->engine));
    fails(worker);
    check(tenon_engine_get_output(worker->engine, 0, worker->output, (size_t)output.bytes));
    check(tenon_engine_destroy(worker->engine));
  }
  return NULL;
}

/* Engines of the first worker's bundle, created and run by every thread. */
static void *share(void *argument) {
  Worker *worker = argument;
  pthread_barrier_wait(&together);
  check(tenon_engine_create(worker->bundle, NULL, &worker->engine));
  check(tenon_engine_set_input(worker->engine, 0, given, given_bytes));
  check(tenon_engine_run_async(worker->engine, NULL, NULL));
  check(tenon_engine_wait(worker->engine, -1));
  fails(worker);
  check(tenon_engine_destroy(worker->engine));
  return NULL;
}

static void in_threads(Worker *workers, int count, void *(*function)(void *)) {
  for (int i = 0; i < count; i++) ENSURE(pthread_create(&workers[i].id, NULL, function, &workers[i]) == 0);
  for (int i = 0; i < count; i++) ENSURE(pthread_join(workers[i].id, NULL) == 0);
}

int main(int count, char **words) {
  static unsigned char room[1 << 16];
  Worker workers[MOST] = {{0}};
  TenonTensor output;
  ENSURE(count == 3);
  const int threads = atoi(words[2]);
  ENSURE(threads > 1 && threads <= MOST);
  path = words[1];
  given = room;
  given_bytes = fread(room, 1, sizeof room, stdin);
  ENSURE(pthread_barrier_init(&together, NULL, (unsigned)threads) == 0);
  for (int i = 0; i < threads; i++) workers[i].number = i;
  in_threads(workers, threads, work);
  check(tenon_bundle_output(workers[0].bundle, 0, 0, &output));
  for (int i = 1; i < threads; i++) {
    ENSURE(memcmp(workers[i].output, workers[0].output, (size_t)output.bytes) == 0);
    check(tenon_bundle_close(workers[i].bundle));
    workers[i].bundle = workers[0].bundle;
  }
  in_threads(workers, threads, share);
  check(tenon_bundle_close(workers[0].bundle));
  fwrite(workers[0].output, 1, (size_t)output.bytes, stdout);
  for (int i = 0; i < threads; i++) free(workers[i].output);
  pthread_barrier_destroy(&together);
  return 0;
}
