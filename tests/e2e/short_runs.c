/* Runs of a pool that are shared: those after pauses, in which the workers fall asleep, only if they are long. */

#define _GNU_SOURCE
#include <stdio.h>
#include <unistd.h>
#include "threads.c"

enum { PHASES = 2, THREADS = 2, RUNS = 40 };

static uint64_t length; /* of a part, in nanoseconds */
static int parts;

static void part(const uint8_t *weights, uint8_t *states, uint8_t *activations, int phase, int index, int count, int thread) {
  (void)weights, (void)states, (void)activations, (void)phase, (void)index, (void)thread, (void)count;
  __atomic_add_fetch(&parts, 1, __ATOMIC_RELAXED);
  const uint64_t start = nanoseconds();
  while (nanoseconds() - start < length) continue;
}

static int next(const uint8_t *weights, uint8_t *states, uint8_t *activations, int phase) {
  (void)weights, (void)states, (void)activations;
  return phase < PHASES - 1 ? phase + 1 : -1;
}

/* Whether most of several runs were by the caller alone. */
static int alone(TenonThreadPool *pool, uint64_t each) {
  int count = 0;
  length = each;
  for (int i = 0; i < RUNS; i++) {
    parts = 0;
    usleep(3000);
    tenon_thread_pool_run(pool, NULL, NULL, NULL);
    count += parts == PHASES;
  }
  return count > RUNS / 2;
}

int main(void) {
  TenonThreadPool *pool = tenon_thread_pool_start(part, next, THREADS);
  if (pool == NULL) return 1;
  const int first = alone(pool, 1000), second = alone(pool, 500000);
  pool->alone = WORTH_WAKING; /* as if many runs had passed */
  const int third = alone(pool, 1000);
  printf("short %s, long %s, short %s again\n", first ? "alone" : "shared", second ? "alone" : "shared",
         third ? "alone" : "shared");
  tenon_thread_pool_stop(pool);
  return 0;
}
