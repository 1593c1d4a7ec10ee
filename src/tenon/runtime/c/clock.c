/* A monotonic clock in nanoseconds for profiling, on machines with an operating system. */

#define _POSIX_C_SOURCE 199309L

#include <stdint.h>
#include <time.h>

typedef struct {
  uint64_t *spent;      /* by each phase */
  uint64_t begin, last; /* readings: of the run's start, and of the last call */
  int phase;            /* that is running; -1: none */
} TenonSpent;

void tenon_stamp(void *context, int phase);

/* A callback of the thread pool (see threads.h): adds the time since its last call to that of the phase which ended. */
void tenon_stamp(void *context, int phase) {
  TenonSpent *own = context;
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  const uint64_t now = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
  if (own->phase >= 0)
    own->spent[own->phase] += now - own->last;
  else
    own->begin = now;
  own->last = now;
  own->phase = phase;
}
