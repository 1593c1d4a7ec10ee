/* Threads of one program, each with a graph of the same model.  Arguments: the model, the number of threads.  Writes the
   output, which is that of all of them. */

#define _POSIX_C_SOURCE 200112L /* barriers */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "require.h"
#include "tengine/c_api.h"

enum { MOST = 16, ROUNDS = 3 };

typedef struct {
  pthread_t id;
  int number, bytes;
  unsigned char *output;
} Worker;

static const char *path;
static unsigned char given[1 << 16];
static int given_bytes;
static pthread_barrier_t together;

static void *work(void *argument) {
  Worker *worker = argument;
  struct options options = {1, TENGINE_CLUSTER_ALL, TENGINE_MODE_FP32, 0};
  options.num_thread = worker->number % 2 + 1;
  pthread_barrier_wait(&together);
  graph_t graph = create_graph(NULL, "tengine", path);
  ENSURE(graph != NULL);
  tensor_t input = get_graph_input_tensor(graph, 0, 0), output = get_graph_output_tensor(graph, 0, 0);
  unsigned char *own = malloc((size_t)given_bytes);
  ENSURE(own != NULL && set_tensor_buffer(input, own, given_bytes) == 0);
  for (int i = 0; i < ROUNDS; i++) {
    ENSURE(prerun_graph_multithread(graph, options) == 0);
    memcpy(own, given, (size_t)given_bytes);
    ENSURE(run_graph(graph, 1) == 0);
    worker->bytes = get_tensor_buffer_size(output);
    free(worker->output);
    worker->output = malloc((size_t)worker->bytes);
    ENSURE(worker->output != NULL);
    memcpy(worker->output, get_tensor_buffer(output), (size_t)worker->bytes);
    ENSURE(postrun_graph(graph) == 0);
  }
  ENSURE(destroy_graph(graph) == 0);
  free(own);
  return NULL;
}

int main(int count, char **words) {
  Worker workers[MOST];
  ENSURE(count == 3 && init_tengine() == 0);
  const int threads = atoi(words[2]);
  ENSURE(threads > 1 && threads <= MOST);
  memset(workers, 0, sizeof workers);
  path = words[1];
  given_bytes = (int)fread(given, 1, sizeof given, stdin);
  ENSURE(pthread_barrier_init(&together, NULL, (unsigned)threads) == 0);
  for (int i = 0; i < threads; i++) {
    workers[i].number = i;
    ENSURE(pthread_create(&workers[i].id, NULL, work, &workers[i]) == 0);
  }
  for (int i = 0; i < threads; i++) ENSURE(pthread_join(workers[i].id, NULL) == 0);
  for (int i = 1; i < threads; i++) {
    ENSURE(workers[i].bytes == workers[0].bytes);
    ENSURE(memcmp(workers[i].output, workers[0].output, (size_t)workers[0].bytes) == 0);
    free(workers[i].output);
  }
  fwrite(workers[0].output, 1, (size_t)workers[0].bytes, stdout);
  free(workers[0].output);
  pthread_barrier_destroy(&together);
  release_tengine();
  return 0;
}
