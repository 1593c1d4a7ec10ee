/* GPU targets as devices: the parts that they run are .tenon files with code for the target, and for the processor, which
   runs them where there is no such device. */

#include "bundle_device.h"

#include "errors.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static OpenFunction *open_part;

void tn_open_parts_by(OpenFunction *open) { __atomic_store_n(&open_part, open, __ATOMIC_RELEASE); }

typedef struct {
  TenonBundle *bundle;
  TenonEngine *engine;
} Part;

static void end(void *given) {
  Part *part = given;
  if (part->engine != NULL) tenon_engine_destroy(part->engine);
  if (part->bundle != NULL) tenon_bundle_close(part->bundle);
  free(part);
}

static char host[] = "host"; /* of devices whose parts run on the processor */

static int begin_with(void *self, const void *data, size_t bytes, const char *gpu, void **result) {
  char targets[32];
  TenonOpenOptions options = TENON_OPEN_OPTIONS_INIT;
  TenonEngineOptions how = TENON_ENGINE_OPTIONS_INIT;
  how.gpu = gpu;
  snprintf(targets, sizeof targets, self != host ? "%s,host" : "%s", (const char *)self);
  options.target = targets;
  options.never_compile = 1;
  OpenFunction *open = __atomic_load_n(&open_part, __ATOMIC_ACQUIRE);
  if (open == NULL) return tn_fail(TENON_UNSUPPORTED, "bundles in programs have no parts on GPUs: open a .tenon file");
  Part *part = calloc(1, sizeof *part);
  if (part == NULL) return tn_fail(TENON_OUT_OF_MEMORY, "no memory");
  int status = open(data, bytes, &options, &part->bundle);
  if (status == TENON_OK) status = tenon_engine_create(part->bundle, &how, &part->engine);
  if (status == TENON_OK) status = tenon_engine_prepare(part->engine);
  if (status == TENON_OK) *result = part;
  else end(part);
  return status;
}

static int begin(void *self, const void *data, size_t bytes, void **result) {
  return begin_with(self, data, bytes, NULL, result);
}

static int run(void *given, const void *const *inputs, void *const *outputs) {
  const Part *part = given;
  TenonTensor tensor;
  int status = TENON_OK;
  for (int i = 0; status == TENON_OK && i < tenon_bundle_input_count(part->bundle); i++) {
    status = tenon_bundle_input(part->bundle, 0, i, &tensor);
    if (status == TENON_OK) status = tenon_engine_set_input(part->engine, i, inputs[i], (size_t)tensor.bytes);
  }
  if (status == TENON_OK) status = tenon_engine_run(part->engine);
  for (int i = 0; status == TENON_OK && i < tenon_bundle_output_count(part->bundle); i++) {
    status = tenon_bundle_output(part->bundle, 0, i, &tensor);
    if (status == TENON_OK) status = tenon_engine_get_output(part->engine, i, outputs[i], (size_t)tensor.bytes);
  }
  return status;
}

static const char *describe(void *self) { return self; }
static const char *error(void *self) { return (void)self, tenon_last_error(); }

#define DEVICE(name, self) \
  {sizeof(TenonDevice), TENON_DEVICE_ABI, name, self, describe, NULL, begin, run, end, NULL, error, NULL, NULL, NULL}
#define BOTH(name) {DEVICE(name, (void *)(uintptr_t)name), DEVICE(name, host)}
static const TenonDevice devices[][2] = {BOTH("opencl"), BOTH("cuda"), BOTH("vulkan")};

const TenonDevice *tn_bundle_device(const char *name, int host_only) {
  for (size_t i = 0; i < sizeof devices / sizeof *devices; i++)
    if (strcmp(devices[i][0].name, name) == 0) return &devices[i][host_only != 0];
  return NULL;
}

static int begin_bundle_part(const TenonDevice *device, const void *data, size_t bytes, const char *gpu, void **part) {
  return begin_with(device->self, data, bytes, gpu, part);
}

BeginPart *tn_begin_part_of(const TenonDevice *device) { return device->run == run ? begin_bundle_part : NULL; }
