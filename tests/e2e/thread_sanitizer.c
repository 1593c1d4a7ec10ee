/* A bundle run by a thread pool under ThreadSanitizer: TENON_HEADER, TENON_ENTRY and TENON_PREFIX name it. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include TENON_HEADER
#include "threads.h"

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define SIZE(what) JOIN(TENON_PREFIX, what)

enum { THREADS = 3, RUNS = 4, LINE = 64 };

static const int PARTS[] = {1, 5, 40}; /* of phases run by this thread, the last first */
enum { ORDERS = sizeof PARTS / sizeof *PARTS };

static void run_backwards(const uint8_t *weights, uint8_t *states, uint8_t *activations, int parts) {
  int phase = -1;
  while ((phase = JOIN(TENON_ENTRY, _next)(weights, states, activations, phase)) >= 0)
    for (int part = parts - 1; part >= 0; part--)
      JOIN(TENON_ENTRY, _phase)(weights, states, activations, phase, part, parts, 0);
}

static uint8_t *region(size_t size) { return aligned_alloc(LINE, (size + LINE) / LINE * LINE); }

int main(int count, char **arguments) {
  const size_t mutable_size = SIZE(MUTABLE_MEM_SIZE);
  uint8_t *weights = region(SIZE(CONSTANT_MEM_SIZE)), *activations = region(SIZE(ACTIVATIONS_MEM_SIZE));
  uint8_t *alone = region(mutable_size), *together = region(mutable_size);
  FILE *file = count > 1 ? fopen(arguments[1], "rb") : NULL;
  if (file == NULL || fread(weights, 1, SIZE(CONSTANT_MEM_SIZE), file) != SIZE(CONSTANT_MEM_SIZE)) return 2;
  fclose(file);
  memset(alone, 0x3c, mutable_size); /* small floats */
  memcpy(together, alone, mutable_size);
  TENON_ENTRY(weights, alone, activations);
  TenonThreadPool *pool = tenon_thread_pool_start(JOIN(TENON_ENTRY, _phase), JOIN(TENON_ENTRY, _next), THREADS);
  if (pool == NULL) return 3;
  int differences = 0;
  for (int i = 0; i < RUNS; i++) {
    tenon_thread_pool_run(pool, weights, together, activations);
    differences += memcmp(alone, together, mutable_size) != 0;
  }
  tenon_thread_pool_stop(pool);
  for (int i = 0; i < ORDERS; i++) {
    run_backwards(weights, together, activations, PARTS[i]);
    differences += memcmp(alone, together, mutable_size) != 0;
  }
  printf("%d of %d runs differ\n", differences, RUNS + ORDERS);
  return differences != 0;
}
