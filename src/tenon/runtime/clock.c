/* The clock of profiles on machines with an operating system: nanoseconds, never set back. */

#define _POSIX_C_SOURCE 199309L

#include <stdint.h>
#include <time.h>

uint64_t tenon_clock(void);

uint64_t tenon_clock(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}
