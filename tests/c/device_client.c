/* Opens a bundle or model for a device, and writes its output for the input on standard input.

   Arguments: model, plug-in ("-": none), its argument, the device to compile for ("-": none). */

#include <string.h>

#include "require.h"
#include "tenon.h"

static int failed(int number) {
  fprintf(stderr, "%s\n", tenon_last_error());
  return number;
}

int main(int count, char **words) {
  TenonOpenOptions options = TENON_OPEN_OPTIONS_INIT;
  TenonEngineOptions two = TENON_ENGINE_OPTIONS_INIT;
  TenonBundle *bundle;
  TenonEngine *engine, *other;
  TenonTensor tensor;
  int position;
  static float input[64], output[64], again[64];
  REQUIRE(count == 5);
  REQUIRE(tenon_device_load(NULL, NULL) == TENON_INVALID_ARGUMENT && tenon_device_register(NULL) == TENON_INVALID_ARGUMENT);
  REQUIRE(tenon_device_describe(NULL) == NULL);
  if (strcmp(words[2], "-") != 0 && tenon_device_load(words[2], words[3]) != TENON_OK) return failed(2);
  if (strcmp(words[2], "-") != 0) {
    REQUIRE(strcmp(tenon_device_describe("NEGATOR"), "negates, version 1") == 0);
    REQUIRE(tenon_device_load(words[2], words[3]) == TENON_OK); /* the same once more */
  }
  if (strcmp(words[4], "-") != 0) options.device = words[4];
  if (tenon_bundle_open(words[1], &options, &bundle) != TENON_OK) return failed(3);
  REQUIRE(tenon_bundle_input_count(bundle) == 1 && tenon_bundle_input(bundle, 0, 0, &tensor) == TENON_OK);
  REQUIRE(tenon_bundle_input(bundle, 0, 1, &tensor) == TENON_NOT_FOUND);
  REQUIRE(tenon_bundle_find_input(bundle, "tenon_device_Negator", &position) == TENON_NOT_FOUND);
  two.threads = 2;
  REQUIRE(tenon_engine_create(bundle, NULL, &engine) == TENON_OK && tenon_engine_create(bundle, &two, &other) == TENON_OK);
  REQUIRE(fread(input, 1, sizeof input, stdin) == sizeof input);
  REQUIRE(tenon_engine_set_input(engine, 0, input, sizeof input) == TENON_OK);
  REQUIRE(tenon_engine_set_input(other, 0, input, sizeof input) == TENON_OK);
  for (int i = 0; i < 2; i++) {
    const TenonStatus status = tenon_engine_run(engine);
    if (status != TENON_OK) return failed(status == TENON_RUN_FAILED && tenon_engine_run(other) == status ? 4 : 5);
  }
  REQUIRE(tenon_engine_run_async(other, NULL, NULL) == TENON_OK && tenon_engine_wait(other, -1) == TENON_OK);
  REQUIRE(tenon_engine_get_output(engine, 0, output, sizeof output) == TENON_OK);
  REQUIRE(tenon_engine_get_output(other, 0, again, sizeof again) == TENON_OK);
  REQUIRE(memcmp(output, again, sizeof output) == 0);
  fwrite(output, 1, sizeof output, stdout);
  REQUIRE(tenon_engine_destroy(engine) == TENON_OK && tenon_engine_destroy(other) == TENON_OK);
  REQUIRE(tenon_bundle_close(bundle) == TENON_OK);
  return 0;
}
