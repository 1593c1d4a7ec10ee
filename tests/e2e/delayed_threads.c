/* Runs the thread pool with pauses before and after sequentially consistent loads and before such stores, as if the thread were
   descheduled there: no wake-up may be lost. */

#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void pause_at_random(void) {
  static uint32_t shared = 1;
  const uint32_t state = __atomic_add_fetch(&shared, 2654435769u, __ATOMIC_RELAXED) * 1664525u;
  if (state >> 30 == 0) usleep(state >> 20 & 511);
}

#define __atomic_load_n(place, order)                  \
  __extension__({                                      \
    __typeof__(*(place)) value;                        \
    if ((order) == __ATOMIC_SEQ_CST) pause_at_random(); \
    __atomic_load(place, &value, order);               \
    if ((order) == __ATOMIC_SEQ_CST) pause_at_random(); \
    value;                                             \
  })
#define __atomic_store_n(place, value, order)           \
  __extension__({                                      \
    __typeof__(*(place)) stored = (value);             \
    if ((order) == __ATOMIC_SEQ_CST) pause_at_random(); \
    __atomic_store(place, &stored, order);             \
  })
#include "threads.c"

enum { TURNS = 7, RUNS = 4 }; /* a run is phases 0, 1, 0, 1, 0, 1, 2 */

static int threads, parts, repeated;

static void part(const uint8_t *weights, uint8_t *states, uint8_t *activations, int phase, int index, int count, int thread) {
  (void)weights, (void)states, (void)activations, (void)phase, (void)index, (void)thread;
  __atomic_add_fetch(&parts, threads * EACH / count, __ATOMIC_RELAXED); /* a thread that runs alone runs one part */
}

static int next(const uint8_t *weights, uint8_t *states, uint8_t *activations, int phase) {
  (void)weights, (void)states, (void)activations;
  if (phase == 1 && ++repeated % 3 != 0) return 0;
  return phase < 2 ? phase + 1 : -1;
}

int main(int argc, char **argv) {
  const int rounds = argc > 1 ? atoi(argv[1]) : 100;
  threads = argc > 2 ? atoi(argv[2]) : 2;
  for (int i = 0; i < rounds; i++) {
    TenonThreadPool *pool = tenon_thread_pool_start(part, next, threads);
    if (pool == NULL) return 1;
    for (int j = 0; j < RUNS; j++) tenon_thread_pool_run(pool, NULL, NULL, NULL);
    tenon_thread_pool_stop(pool);
  }
  const int expected = rounds * RUNS * TURNS * threads * EACH;
  printf("%d of %d\n", parts, expected);
  return parts != expected;
}
