/* A monotonic clock in nanoseconds for profiling, on machines with an operating system. */

#define _POSIX_C_SOURCE 199309L

#include <stdint.h>
#include <time.h>

void tenon_stamp(void *context);

/* A callback of the thread pool (see threads.h): store the time at the cursor `context` and advance it. */
void tenon_stamp(void *context) {
  uint64_t **at = context;
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  *(*at)++ = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}
