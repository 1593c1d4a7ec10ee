/* The clock of profiles on machines with an operating system: nanoseconds, never set back. */

#define _POSIX_C_SOURCE 199309L

#include <stdint.h>
#include <time.h>

void tenon_stamp(void *context);

/* A watch for a team (see threads.h): `context` points to where the next reading goes, and moves on. */
void tenon_stamp(void *context) {
  uint64_t **at = context;
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  *(*at)++ = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}
