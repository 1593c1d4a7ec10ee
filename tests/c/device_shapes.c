/* An engine of a model whose parts a device runs, for shapes that no binding has: device_shapes MODEL PLUGIN, 64 numbers on
   standard input, and on standard output what the model makes of them as 8x8, of the first 32 as 2x16, and as 4x16.  The
   device has the model's two parts where they have 64 elements, and never those of two shapes. */

#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>

#include "require.h"
#include "tenon.h"

#define CHECK(call) (((call) == TENON_OK) ? (void)0 : (fprintf(stderr, "%s\n", tenon_last_error()), exit(1)))

int main(int count, char **words) {
  static const int64_t shapes[3][2] = {{8, 8}, {2, 16}, {4, 16}};
  static const int parts[3] = {2, 0, 2};
  static float input[64], output[64];
  TenonOpenOptions options = TENON_OPEN_OPTIONS_INIT;
  char device[] = "negator";
  TenonBundle *bundle;
  TenonEngine *engine;
  REQUIRE(count == 3 && fread(input, 1, sizeof input, stdin) == sizeof input);
  CHECK(tenon_device_load(words[2], ""));
  int (*living)(void) = (int (*)(void))(uintptr_t)dlsym(dlopen(words[2], RTLD_NOW), "negating_parts");
  options.device = device;
  CHECK(tenon_bundle_open(words[1], &options, &bundle));
  device[0] = 0; /* options are needed only while the bundle is opened */
  CHECK(tenon_engine_create(bundle, NULL, &engine));
  CHECK(tenon_engine_run(engine));
  REQUIRE(living() == 2);
  for (int i = 0; i < 3; i++) {
    const size_t bytes = (size_t)(shapes[i][0] * shapes[i][1]) * sizeof(float);
    CHECK(tenon_engine_select_shapes(engine, shapes[i], 2));
    CHECK(tenon_engine_set_input(engine, 0, input, bytes));
    for (int j = 0; j < 2; j++) CHECK(tenon_engine_run(engine));
    REQUIRE(living() == parts[i]);
    CHECK(tenon_engine_get_output(engine, 0, output, bytes));
    fwrite(output, 1, bytes, stdout);
  }
  CHECK(tenon_engine_destroy(engine));
  REQUIRE(living() == 0);
  CHECK(tenon_bundle_close(bundle));
  return 0;
}
