/* A device plug-in for tests: it takes nodes Neg of 64 floats.  Its argument "refuse" makes prerun fail, "fail" run, and
   "useless" the whole plug-in; "slow" makes it slower than any processor. */

#include <string.h>

#include "tenon_device.h"

static const char *behaviour = "", *message = "";
static int living;

typedef struct {
  float sign;
} Part;

static Part parts[16];

/* Parts that were prepared and not ended. */
int negating_parts(void);
int negating_parts(void) { return living; }

static const char *describe(void *self) { return (void)self, "negates, version 1"; }

static const char *error(void *self) { return (void)self, message; }

static int supports(void *self, const TenonDeviceNode *node) {
  int64_t count = 1;
  (void)self;
  for (int32_t d = 0; d < node->ranks[0]; d++) count *= node->shapes[0][d];
  return strcmp(node->op, "Neg") == 0 && strcmp(node->types[0], "f32") == 0 && count == 64;
}

/* The sign follows from the number of nodes, whose type is field 4 of a node in the ONNX model. */
static int prerun(void *self, const void *onnx, size_t bytes, void **part) {
  static const char node[] = "\"\3Neg";
  const char *text = onnx;
  (void)self;
  if (strcmp(behaviour, "refuse") == 0) return message = "it is asleep", 1;
  Part *own = &parts[living++ % 16];
  own->sign = 1;
  for (size_t i = 0; i + 5 <= bytes; i++)
    if (memcmp(text + i, node, 5) == 0) own->sign = -own->sign;
  return *part = own, 0;
}

static int run(void *part, const void *const *inputs, void *const *outputs) {
  const float *from = inputs[0], sign = ((const Part *)part)->sign;
  float *to = outputs[0];
  if (strcmp(behaviour, "fail") == 0) return message = "it burnt", 1;
  for (int i = 0; i < 64; i++) to[i] = sign * from[i];
  return 0;
}

static void postrun(void *part) { ((Part *)part)->sign = 0, living--; }

static double seconds(void *self, const TenonDeviceNode *node) {
  return (void)self, (void)node, strcmp(behaviour, "slow") == 0 ? 1 : 0;
}

static double copy_seconds(void *self, uint64_t bytes) { return (void)self, (void)bytes, 0; }

static const char *refusal(void *self, const TenonDeviceNode *node) {
  return (void)self, strcmp(node->op, "Neg") == 0 ? "negates 64 floats" : NULL;
}

static const TenonDevice device = {.struct_size = sizeof(TenonDevice),
                                   .abi = TENON_DEVICE_ABI,
                                   .name = "Negator",
                                   .describe = describe,
                                   .supports = supports,
                                   .prerun = prerun,
                                   .run = run,
                                   .postrun = postrun,
                                   .error = error,
                                   .seconds = seconds,
                                   .copy_seconds = copy_seconds,
                                   .refusal = refusal};

TenonPluginDevice tenon_plugin_device;
const TenonDevice *tenon_plugin_device(const char *argument, const char **why) {
  behaviour = argument;
  *why = "it is useless";
  return strcmp(argument, "useless") == 0 ? NULL : &device;
}
