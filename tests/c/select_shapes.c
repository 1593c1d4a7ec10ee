/* An engine of a model whose input gets shapes that no binding has: select_shapes MODEL|memory:MODEL, three images on
   standard input, the scores of three, one and three images on standard output.  While there is no compiler, the engine
   stays as it is. */

#define _POSIX_C_SOURCE 200112L
#include "tenon.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(call)                                                                      \
  do {                                                                                   \
    if ((call) != TENON_OK) {                                                            \
      fprintf(stderr, "%d: %s\n", __LINE__, tenon_last_error());                         \
      exit(1);                                                                           \
    }                                                                                    \
  } while (0)

enum { IMAGE = 64, SCORES = 10 };

static void *content(const char *path, size_t *bytes) {
  static unsigned char data[1 << 16];
  FILE *file = fopen(path, "rb");
  *bytes = file != NULL ? fread(data, 1, sizeof data, file) : 0;
  if (file != NULL) fclose(file);
  return data;
}

/* Errors, after which the engine has the shapes that it had. */
static int refuses_others(TenonEngine *engine) {
  static const int64_t three[5] = {3, 1, 8, 8, 1};
  const char *compiler = getenv("TENON");
  char *kept = malloc(strlen(compiler) + 1);
  TenonTensor tensor;
  strcpy(kept, compiler);
  setenv("TENON", "/no/such/tenon", 1);
  int holds = tenon_engine_select_shapes(engine, three, 4) == TENON_NO_COMPILER &&
              strstr(tenon_last_error(), "compile it first: tenon compile") != NULL;
  setenv("TENON", kept, 1);
  free(kept);
  holds = holds && tenon_engine_select_shapes(engine, three, 3) == TENON_WRONG_SIZE;
  holds = holds && tenon_engine_select_shapes(engine, three, 5) == TENON_WRONG_SIZE;
  holds = holds && tenon_engine_select_shapes(engine, NULL, 4) == TENON_INVALID_ARGUMENT;
  CHECK(tenon_engine_input(engine, 0, &tensor));
  return holds && tensor.shape[0] == 1 && tenon_engine_binding(engine) == 0 && tenon_engine_run(engine) == TENON_OK;
}

static int select_images(TenonEngine *engine, int64_t count) {
  const int64_t shape[4] = {count, 1, 8, 8};
  TenonTensor tensor;
  CHECK(tenon_engine_select_shapes(engine, shape, 4));
  CHECK(tenon_engine_input(engine, 0, &tensor));
  if (tensor.shape[0] != count || tensor.bytes != (uint64_t)count * IMAGE * sizeof(float)) return 0;
  CHECK(tenon_engine_output(engine, 0, &tensor));
  if (tensor.shape[0] != count || strcmp(tensor.name, "probabilities") != 0) return 0;
  return tenon_engine_binding(engine) == (count == 1 ? 0 : -1); /* one image is what the model was opened for */
}

int main(int count, char **words) {
  static const int64_t counts[3] = {3, 1, 3};
  static float images[3 * IMAGE], scores[3 * SCORES];
  char arguments[] = "--no-tuning";
  const char *list[] = {arguments, NULL};
  TenonOpenOptions options = TENON_OPEN_OPTIONS_INIT;
  TenonBundle *bundle;
  TenonEngine *engine;
  size_t bytes;
  if (count < 2 || fread(images, sizeof(float), 3 * IMAGE, stdin) != 3 * IMAGE) return 2;
  options.arguments = list;
  if (strncmp(words[1], "memory:", 7) == 0) {
    void *data = content(words[1] + 7, &bytes);
    options.model_name = "digits.onnx";
    CHECK(tenon_bundle_open_memory(data, bytes, &options, &bundle));
  } else {
    CHECK(tenon_bundle_open(words[1], &options, &bundle));
  }
  memset(arguments, 0, sizeof arguments); /* options are needed only while the bundle is opened */
  CHECK(tenon_engine_create(bundle, NULL, &engine));
  if (!refuses_others(engine)) return 3;
  CHECK(tenon_bundle_close(bundle)); /* the engine keeps what it needs */
  for (int i = 0; i < 3; i++) {
    int64_t extents[TENON_MAX_RANK];
    int rank;
    if (!select_images(engine, counts[i])) return 5;
    CHECK(tenon_engine_set_input(engine, 0, images, (size_t)counts[i] * IMAGE * sizeof(float)));
    CHECK(tenon_engine_run(engine));
    CHECK(tenon_engine_output_shape(engine, 0, extents, &rank));
    if (rank != 2 || extents[0] != counts[i]) return 4;
    CHECK(tenon_engine_get_output(engine, 0, scores, (size_t)counts[i] * SCORES * sizeof(float)));
    fwrite(scores, sizeof(float), (size_t)counts[i] * SCORES, stdout);
  }
  CHECK(tenon_engine_select(engine, 0));
  if (tenon_engine_binding(engine) != 0 || tenon_engine_select(engine, 1) != TENON_NOT_FOUND) return 6;
  CHECK(tenon_engine_destroy(engine));
  return 0;
}
