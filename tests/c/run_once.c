/* Runs a bundle once, on its first input from standard input, and writes its first output; the devices of its parts are
   those of TENON_DEVICE_PLUGINS. */

#include <stdlib.h>

#include "require.h"
#include "tenon.h"

int main(int count, char **words) {
  TenonBundle *bundle;
  TenonEngine *engine;
  TenonTensor input, output;
  REQUIRE(count == 2);
  if (tenon_bundle_open(words[1], NULL, &bundle) != TENON_OK || tenon_engine_create(bundle, NULL, &engine) != TENON_OK)
    return fprintf(stderr, "%s\n", tenon_last_error()), 1;
  REQUIRE(tenon_bundle_input(bundle, 0, 0, &input) == TENON_OK && tenon_bundle_output(bundle, 0, 0, &output) == TENON_OK);
  void *x = malloc((size_t)input.bytes), *y = malloc((size_t)output.bytes);
  REQUIRE(x != NULL && y != NULL && fread(x, 1, (size_t)input.bytes, stdin) == (size_t)input.bytes);
  if (tenon_engine_set_input(engine, 0, x, (size_t)input.bytes) != TENON_OK || tenon_engine_run(engine) != TENON_OK ||
      tenon_engine_get_output(engine, 0, y, (size_t)output.bytes) != TENON_OK)
    return fprintf(stderr, "%s\n", tenon_last_error()), 1;
  REQUIRE(fwrite(y, 1, (size_t)output.bytes, stdout) == (size_t)output.bytes);
  free(x), free(y);
  return tenon_engine_destroy(engine) == TENON_OK && tenon_bundle_close(bundle) == TENON_OK ? 0 : 1;
}
