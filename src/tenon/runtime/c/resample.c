/* Source: J. O. Smith and P. Gossett, A Flexible Sampling-Rate Conversion Method (1984).  See runtime/engine/resample.py. */

#include "wav.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Zero crossings of the sinc on each side, the parameter of Kaiser's window, and the part of the band that passes. */
static const double CROSSINGS = 32, BETA = 8, PASSED = 0.94, PI = 3.14159265358979323846;
enum { CHUNK = 1024, LARGEST = 1 << 18 }; /* the most weights that are kept: those of all phases, or else of one */

struct Resampler {
  ResampledSamples *give;
  void *user;
  uint64_t up, down, taken, made; /* samples so far */
  size_t half, width, phases;     /* samples on each side of a place, and weights of a phase; phases that are kept */
  double cutoff, *weights, *held; /* `held` begins with sample `first` - `half` */
  uint64_t first;
  size_t count, room;
  int status;
};

static double bessel(double x) { /* of the first kind, modified, of order 0 */
  double term = 1, sum = 1;
  for (int k = 1; k < 64 && term > sum * 1e-18; k++) sum += term *= (x / 2 / k) * (x / 2 / k);
  return sum;
}

/* Weights of the samples around a place `offset` of a sample behind the middle one, of sum 1. */
static void fill(const Resampler *r, double offset, double *weights) {
  double sum = 0;
  for (size_t i = 0; i < r->width; i++) {
    const double t = (double)i - (double)r->half - offset, x = PI * r->cutoff * t, part = t / (double)(r->half + 1);
    const double inner = 1 - part * part;
    weights[i] = (x == 0 ? 1 : sin(x) / x) * bessel(BETA * sqrt(inner > 0 ? inner : 0));
    sum += weights[i];
  }
  for (size_t i = 0; i < r->width; i++) weights[i] /= sum;
}

static uint64_t divisor(uint64_t a, uint64_t b) { return b == 0 ? a : divisor(b, a % b); }

Resampler *resampler_new(unsigned rate, unsigned wanted, ResampledSamples *give, void *user) {
  Resampler *r = calloc(1, sizeof *r);
  if (r == NULL) return NULL;
  const uint64_t common = divisor(rate, wanted);
  r->give = give;
  r->user = user;
  r->up = wanted / common;
  r->down = rate / common;
  r->cutoff = PASSED * (wanted < rate ? (double)wanted / rate : 1);
  r->half = rate == wanted ? 0 : (size_t)ceil(CROSSINGS / r->cutoff);
  r->width = 2 * r->half + 1;
  r->phases = r->up <= LARGEST / r->width ? (size_t)r->up : 1;
  r->room = r->width + CHUNK;
  r->count = r->half;
  r->weights = calloc(r->phases * r->width, sizeof *r->weights);
  r->held = calloc(r->room, sizeof *r->held);
  if (r->weights != NULL && r->held != NULL) {
    for (size_t i = 0; r->half > 0 && r->phases == r->up && i < r->phases; i++)
      fill(r, (double)i / (double)r->up, r->weights + i * r->width);
    return r;
  }
  free(r->weights);
  free(r->held);
  free(r);
  return NULL;
}

static float sample_at(const Resampler *r, size_t start, uint64_t phase) {
  const double *x = r->held + start, *w = r->weights + (r->phases == r->up ? phase * r->width : 0);
  double sum = 0;
  if (r->half == 0) return (float)x[0];
  if (r->phases != r->up) fill(r, (double)phase / (double)r->up, r->weights);
  for (size_t i = 0; i < r->width; i++) sum += w[i] * x[i];
  return (float)sum;
}

/* Give the samples whose surroundings are there, up to number `end`. */
static void give(Resampler *r, uint64_t end) {
  float made[CHUNK];
  size_t count = 0;
  for (; r->made < end && r->status == 0; r->made++) {
    const uint64_t start = r->made * r->down / r->up - r->first;
    if (start + r->width > r->count) break;
    made[count++] = sample_at(r, (size_t)start, r->made * r->down % r->up);
    if (count == CHUNK) r->status = r->give(made, count, r->user), count = 0;
  }
  if (count > 0 && r->status == 0) r->status = r->give(made, count, r->user);
  const uint64_t next = r->made * r->down / r->up - r->first;
  const size_t done = next < r->count ? (size_t)next : r->count;
  memmove(r->held, r->held + done, (r->count - done) * sizeof *r->held);
  r->count -= done;
  r->first += done;
}

static void take(Resampler *r, const double *samples, size_t count, uint64_t end) {
  while (count > 0 && r->status == 0) {
    const size_t room = r->room - r->count, taken = count < room ? count : room;
    for (size_t i = 0; i < taken; i++) r->held[r->count + i] = samples != NULL ? samples[i] : 0;
    r->count += taken;
    if (samples != NULL) samples += taken;
    count -= taken;
    give(r, end);
  }
}

int resampler_add(Resampler *r, const double *samples, size_t count) {
  r->taken += count;
  take(r, samples, count, UINT64_MAX);
  return r->status;
}

int resampler_end(Resampler *r) {
  take(r, NULL, r->half + 1 + (size_t)(r->down / r->up), (r->taken * r->up + r->down - 1) / r->down);
  const int status = r->status;
  free(r->weights);
  free(r->held);
  free(r);
  return status;
}
