/* The environment variables of MACE that mean something on a CPU. */

#include "core.h"
#include "platform.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Numbers from 0 to 1: a counter, mixed as SplitMix64 does (Steele, Lea, Flood: Fast Splittable Pseudorandom Number
   Generators, 2014). */
static double random_fraction(void) {
  static uint32_t counter; /* 32-bit machines have no larger atomic ones */
  uint64_t z = 0x9e3779b97f4a7c15u * __atomic_add_fetch(&counter, 1, __ATOMIC_RELAXED) + tn_clock();
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return (double)((z ^ z >> 31) >> 11) / 9007199254740992.0;
}

int mc_simulates_failure(void) {
  const char *ratio = getenv("MACE_RUNTIME_FAILURE_RATIO");
  return ratio != NULL && random_fraction() < strtod(ratio, NULL);
}

char *mc_gpu_lines(const char *lines) {
  const char *limit = getenv("MACE_LIMIT_OPENCL_KERNEL_TIME"), *window = getenv("MACE_OPENCL_QUEUE_WINDOW_SIZE");
  const char *tunes = getenv("MACE_TUNING"), *file = getenv("MACE_RUN_PARAMETER_PATH");
  if (tunes == NULL || strcmp(tunes, "1") != 0) file = NULL;
  const size_t bytes = (lines != NULL ? strlen(lines) : 0) + (file != NULL ? strlen(file) : 0) + 80;
  char *all = malloc(bytes), launches[32] = "";
  if (all == NULL) return NULL;
  if (window != NULL) snprintf(launches, sizeof launches, "queue_window: %ld\n", strtol(window, NULL, 10));
  snprintf(all, bytes, "%s%s%s%s%s%s", lines != NULL ? lines : "", file != NULL ? "tune: " : "",
           file != NULL ? file : "", file != NULL ? "\n" : "",
           limit != NULL && strcmp(limit, "1") == 0 ? "kernel_time: 1\n" : "", launches);
  return all;
}

void mc_log_range(const TenonTensor *tensor, const float *elements) {
  const char *wanted = getenv("MACE_LOG_TENSOR_RANGE");
  const uint64_t count = tensor->bytes / sizeof *elements;
  if (wanted == NULL || strcmp(wanted, "1") != 0 || tensor->type != TENON_F32 || count == 0) return;
  float least = elements[0], most = elements[0];
  for (uint64_t i = 1; i < count; i++) {
    if (elements[i] < least) least = elements[i];
    if (elements[i] > most) most = elements[i];
  }
  printf("I environment.c:%d] Tensor range @@%s@@%.9g,%.9g\n", __LINE__, tensor->name, (double)least, (double)most);
}
