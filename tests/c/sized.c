/* Runs a bundle of s = a + b for a of [2, L, W] and b of [L, W] with arrays of changing size: sized BUNDLE.  Every array is
   memory of its own, so that a sanitizer sees accesses outside of them. */

#include "tenon.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                           \
  do {                                                                             \
    if (!(condition)) {                                                            \
      fprintf(stderr, "line %d: %s: %s\n", __LINE__, #condition, tenon_last_error()); \
      exit(1);                                                                     \
    }                                                                              \
  } while (0)

enum { MOST_L = 24, MOST_W = 5, A = 0, B = 1, L = 2, W = 3 };

static unsigned state = 1;
static int below(int most) { return (int)((state = state * 1103515245u + 12345u) >> 16) % most; }

static float *filled(size_t count) {
  float *values = malloc((count ? count : 1) * sizeof *values);
  CHECK(values != NULL);
  for (size_t i = 0; i < count; i++) values[i] = (float)(below(2000) - 1000);
  return values;
}

static int is_right(int64_t l, int64_t w) { return l >= 4 && l <= MOST_L && (l - 4) % 4 == 0 && w >= 1 && w <= MOST_W; }

static void check_sum(TenonEngine *engine, const float *a, const float *b, int64_t l, int64_t w) {
  int64_t shape[TENON_MAX_RANK];
  int rank;
  const size_t count = (size_t)(2 * l * w);
  float *sum = malloc(count * sizeof *sum);
  CHECK(tenon_engine_output_shape(engine, 0, shape, &rank) == TENON_OK);
  CHECK(rank == 3 && shape[0] == 2 && shape[1] == l && shape[2] == w);
  CHECK(sum != NULL && tenon_engine_get_output(engine, 0, sum, count * sizeof *sum) == TENON_OK);
  for (size_t i = 0; i < count; i++) CHECK(sum[i] == a[i] + b[i % (count / 2)]);
  free(sum);
}

static void run_sized(TenonEngine *engine, int64_t l, int64_t w, int by_select) {
  const int64_t shapes[5] = {2, l, w, l, w};
  int64_t shape[TENON_MAX_RANK];
  int rank;
  if (by_select)
    CHECK(tenon_engine_select_shapes(engine, shapes, 5) == (is_right(l, w) ? TENON_OK : TENON_WRONG_SIZE));
  else
    for (int i = A; i <= B; i++)
      CHECK(tenon_engine_set_input_shape(engine, i, shapes + 3 * i, 3 - i) == (is_right(l, w) ? TENON_OK : TENON_WRONG_SIZE));
  if (!is_right(l, w)) return;
  CHECK(tenon_engine_input_shape(engine, B, shape, &rank) == TENON_OK && rank == 2 && shape[0] == l && shape[1] == w);
  const size_t count = (size_t)(l * w);
  float *a = filled(2 * count), *b = filled(count);
  CHECK(tenon_engine_set_input(engine, A, a, 2 * count * sizeof *a) == TENON_OK);
  CHECK(tenon_engine_set_input(engine, B, b, count * sizeof *b) == TENON_OK);
  if (l < MOST_L) CHECK(tenon_engine_set_input(engine, B, b, (count + (size_t)w) * sizeof *b) == TENON_WRONG_SIZE);
  CHECK(tenon_engine_run(engine) == TENON_OK);
  check_sum(engine, a, b, l, w);
  free(a);
  free(b);
}

static void refuse_others(TenonEngine *engine) {
  static const int64_t a[3] = {2, 8, 3}, b[2] = {12, 3}, other[3] = {3, 8, 3};
  static const int64_t sizes[] = {INT64_MIN, -1, 0, 3, 25, 1 << 20, INT64_MAX};
  CHECK(tenon_engine_set_input_shape(engine, A, other, 3) == TENON_WRONG_SIZE);
  CHECK(tenon_engine_set_input_shape(engine, A, a, 2) == TENON_WRONG_SIZE);
  CHECK(tenon_engine_set_input_shape(engine, A, NULL, 3) == TENON_INVALID_ARGUMENT);
  CHECK(tenon_engine_set_input_shape(engine, 9, a, 3) == TENON_NOT_FOUND);
  CHECK(tenon_engine_input_shape(engine, A, NULL, NULL) == TENON_INVALID_ARGUMENT);
  CHECK(tenon_engine_set_input_shape(engine, A, a, 3) == TENON_OK);
  CHECK(tenon_engine_set_input_shape(engine, B, b, 2) == TENON_OK);
  CHECK(tenon_engine_run(engine) == TENON_WRONG_SIZE);
  CHECK(strstr(tenon_last_error(), "the size 'L' is 8 in 'a', and 12 in another input") != NULL);
  run_sized(engine, 8, 3, 0);
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    CHECK(tenon_engine_set_input(engine, L, &sizes[i], sizeof *sizes) == TENON_OK);
    CHECK(tenon_engine_run(engine) == TENON_WRONG_SIZE);
  }
}

int main(int count, char **words) {
  TenonBundle *bundle;
  TenonEngine *engine;
  TenonTensor tensor;
  TenonEngineOptions options = TENON_ENGINE_OPTIONS_INIT;
  CHECK(count == 2 && tenon_bundle_open(words[1], NULL, &bundle) == TENON_OK);
  CHECK(tenon_bundle_input(bundle, 0, A, &tensor) == TENON_OK && tensor.dynamic_axes == 6 && !tensor.is_size);
  CHECK(tenon_bundle_input(bundle, 0, L, &tensor) == TENON_OK && tensor.dynamic_axes == 0 && tensor.is_size);
  CHECK(tensor.least == 4 && tensor.most == MOST_L && tensor.step == 4);
  CHECK(tenon_engine_create(bundle, &options, &engine) == TENON_OK);
  CHECK(tenon_engine_run(engine) == TENON_OK); /* the largest sizes */
  for (int i = 0; i < 200; i++) run_sized(engine, below(30) - 2, below(8) - 1, i % 2);
  for (int l = 4; l <= MOST_L; l += 4)
    for (int w = 1; w <= MOST_W; w++) run_sized(engine, l, w, w % 2);
  refuse_others(engine);
  CHECK(tenon_engine_destroy(engine) == TENON_OK && tenon_bundle_close(bundle) == TENON_OK);
  return 0;
}
