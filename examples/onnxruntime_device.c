/* A device plug-in: ONNX Runtime takes convolutions, matrix products and what lies between them, by one of its execution
   providers.

       cc -shared -fPIC -Isdk/include onnxruntime_device.c -ldl -o onnxruntime_device.so

   The argument is the path of libonnxruntime.so ("": the loader looks for it), then, separated by commas, the name of an
   execution provider and its options: "libonnxruntime.so,OpenVINO,device_type=NPU".  The device has the provider's name;
   without one it is "onnxruntime", which computes on the processor.  What a provider does not run itself is refused, so that
   compiled code does.

   The C API is a table of functions whose order never changes (struct OrtApi of onnxruntime_c_api.h); the numbers below are
   places in it, so that no header is needed. */

#include <ctype.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tenon_device.h"

enum {
  GET_ERROR_MESSAGE = 2,
  CREATE_ENV = 3,
  CREATE_SESSION_FROM_ARRAY = 8,
  RUN = 9,
  CREATE_SESSION_OPTIONS = 10,
  SESSION_GET_INPUT_COUNT = 30,
  SESSION_GET_OUTPUT_COUNT = 31,
  SESSION_GET_INPUT_TYPE_INFO = 33,
  SESSION_GET_OUTPUT_TYPE_INFO = 34,
  SESSION_GET_INPUT_NAME = 36,
  SESSION_GET_OUTPUT_NAME = 37,
  CREATE_TENSOR_WITH_DATA = 49,
  CAST_TYPE_INFO = 55,
  GET_DIMENSIONS_COUNT = 61,
  GET_DIMENSIONS = 62,
  CREATE_CPU_MEMORY_INFO = 69,
  GET_ALLOCATOR = 78,
  RELEASE_STATUS = 93,
  RELEASE_SESSION = 95,
  RELEASE_VALUE = 96,
  RELEASE_TYPE_INFO = 98,
  RELEASE_SESSION_OPTIONS = 100,
  GET_AVAILABLE_PROVIDERS = 125,
  RELEASE_AVAILABLE_PROVIDERS = 126,
  ADD_SESSION_CONFIG_ENTRY = 130,
  APPEND_TENSORRT = 170, /* then the functions that create and update its options */
  APPEND_CUDA = 204,     /* the same */
  APPEND_PROVIDER = 216,
  FLOAT = 1,
  MOST = 64,
  MOST_OPTIONS = 16,
  TEXT = 512,
};

typedef void *Status;
typedef void Function(void);
typedef struct {
  Function *const *(*get_api)(uint32_t version);
  const char *(*get_version)(void);
} ApiBase;

static Function *const *api;
static void *environment, *options, *memory, *allocator;
static char message[2 * TEXT], description[TEXT], provider[64] = "onnxruntime";

typedef struct {
  void *session;
  size_t input_count, output_count;
  char *names[MOST]; /* inputs, then outputs */
  int64_t dims[MOST][16];
  size_t ranks[MOST];
} Part;

/* 1 after an error, whose text is kept. */
static int failed(Status status) {
  if (status == NULL) return 0;
  snprintf(message, sizeof message, "%s", ((const char *(*)(Status))api[GET_ERROR_MESSAGE])(status));
  ((void (*)(Status))api[RELEASE_STATUS])(status);
  return 1;
}

static const char *describe(void *self) { return (void)self, description; }

static const char *error(void *self) { return (void)self, message; }

static int supports(void *self, const TenonDeviceNode *node) {
  static const char *const taken[] = {"Conv", "Gemm", "MatMul", "Relu", "MaxPool", "AveragePool", "BatchNormalization"};
  (void)self;
  for (int i = 0; i < node->input_count + node->output_count; i++)
    if (strcmp(node->types[i], "f32") != 0 && node->types[i][0] != 0) return 0;
  for (size_t i = 0; i < sizeof taken / sizeof *taken; i++)
    if (strcmp(node->op, taken[i]) == 0) return 1;
  return 0;
}

static int read_port(Part *part, size_t at, size_t number, int is_output) {
  void *info = NULL;
  const void *tensor = NULL;
  const int name = is_output ? SESSION_GET_OUTPUT_NAME : SESSION_GET_INPUT_NAME;
  const int type = is_output ? SESSION_GET_OUTPUT_TYPE_INFO : SESSION_GET_INPUT_TYPE_INFO;
  if (failed(((Status(*)(void *, size_t, void *, char **))api[name])(part->session, number, allocator, &part->names[at])) ||
      failed(((Status(*)(void *, size_t, void **))api[type])(part->session, number, &info)))
    return 1;
  const int bad = failed(((Status(*)(void *, const void **))api[CAST_TYPE_INFO])(info, &tensor)) ||
                  failed(((Status(*)(const void *, size_t *))api[GET_DIMENSIONS_COUNT])(tensor, &part->ranks[at])) ||
                  part->ranks[at] > 16 ||
                  failed(((Status(*)(const void *, int64_t *, size_t))api[GET_DIMENSIONS])(tensor, part->dims[at], part->ranks[at]));
  ((void (*)(void *))api[RELEASE_TYPE_INFO])(info);
  return bad;
}

static void postrun(void *handle) {
  Part *part = handle;
  if (part->session != NULL) ((void (*)(void *))api[RELEASE_SESSION])(part->session);
  free(part);
}

static int prerun(void *self, const void *onnx, size_t bytes, void **result) {
  Part *part = calloc(1, sizeof *part);
  (void)self;
  if (part == NULL) return 1;
  int bad = failed(((Status(*)(void *, const void *, size_t, void *, void **))api[CREATE_SESSION_FROM_ARRAY])(
                environment, onnx, bytes, options, &part->session)) ||
            failed(((Status(*)(void *, size_t *))api[SESSION_GET_INPUT_COUNT])(part->session, &part->input_count)) ||
            failed(((Status(*)(void *, size_t *))api[SESSION_GET_OUTPUT_COUNT])(part->session, &part->output_count));
  if (!bad && part->input_count + part->output_count > MOST) {
    snprintf(message, sizeof message, "a part has more than %d inputs and outputs", MOST);
    bad = 1;
  }
  for (size_t i = 0; !bad && i < part->input_count; i++) bad = read_port(part, i, i, 0);
  for (size_t i = 0; !bad && i < part->output_count; i++) bad = read_port(part, part->input_count + i, i, 1);
  if (bad) postrun(part);
  else *result = part;
  return bad;
}

static int run(void *handle, const void *const *inputs, void *const *outputs) {
  Part *part = handle;
  const size_t count = part->input_count + part->output_count;
  void *values[MOST] = {NULL};
  int bad = 0;
  for (size_t i = 0; !bad && i < count; i++) {
    size_t bytes = sizeof(float);
    union { const void *from; void *to; } data = {i < part->input_count ? inputs[i] : outputs[i - part->input_count]};
    for (size_t d = 0; d < part->ranks[i]; d++) bytes *= (size_t)part->dims[i][d];
    bad = failed(((Status(*)(void *, void *, size_t, const int64_t *, size_t, int, void **))api[CREATE_TENSOR_WITH_DATA])(
        memory, data.to, bytes, part->dims[i], part->ranks[i], FLOAT, &values[i]));
  }
  if (!bad)
    bad = failed(((Status(*)(void *, void *, char **, void **, size_t, char **, size_t, void **))api[RUN])(
        part->session, NULL, part->names, values, part->input_count, part->names + part->input_count, part->output_count,
        values + part->input_count));
  for (size_t i = 0; i < count; i++)
    if (values[i] != NULL) ((void (*)(void *))api[RELEASE_VALUE])(values[i]);
  return bad;
}

static const TenonDevice device = {.struct_size = sizeof(TenonDevice),
                                   .abi = TENON_DEVICE_ABI,
                                   .name = provider,
                                   .describe = describe,
                                   .supports = supports,
                                   .prerun = prerun,
                                   .run = run,
                                   .postrun = postrun,
                                   .error = error};

/* ------------------------------------------------------------------------------------------------------- providers */

/* TensorRT's and CUDA's have options of their own; `create` and `update` follow in the table. */
static int append_with_options(int append, const char *const *keys, const char *const *values, size_t count) {
  void *made = NULL;
  return failed(((Status(*)(void **))api[append + 1])(&made)) ||
         failed(((Status(*)(void *, const char *const *, const char *const *, size_t))api[append + 2])(made, keys, values, count)) ||
         failed(((Status(*)(void *, const void *))api[append])(options, made));
}

static int is_prefix(const char *prefix, const char *text) {
  while (*prefix && tolower((unsigned char)*prefix) == tolower((unsigned char)*text)) prefix++, text++;
  return *prefix == 0;
}

/* Whether this library has it; else the message lists those that it has. */
static int is_available(const char *name) {
  char **names = NULL;
  int count = 0, is_there = 0;
  if (failed(((Status(*)(char ***, int *))api[GET_AVAILABLE_PROVIDERS])(&names, &count))) return 0;
  size_t used = (size_t)snprintf(message, sizeof message, "this ONNX Runtime has no provider %s: it has", name);
  for (int i = 0; i < count; i++) {
    is_there |= is_prefix(name, names[i]) && strcmp(names[i] + strlen(name), "ExecutionProvider") == 0;
    if (used < sizeof message) used += (size_t)snprintf(message + used, sizeof message - used, " %s", names[i]);
  }
  failed(((Status(*)(char **, int))api[RELEASE_AVAILABLE_PROVIDERS])(names, count));
  return is_there;
}

/* "NAME,KEY=VALUE,...", which is cut into pieces. */
static int choose_provider(char *text) {
  const char *keys[MOST_OPTIONS], *values[MOST_OPTIONS];
  size_t count = 0;
  char *name = strtok(text, ",");
  for (char *option; (option = strtok(NULL, ",")) != NULL && count < MOST_OPTIONS; count++) {
    char *value = strchr(option, '=');
    if (value == NULL) return snprintf(message, sizeof message, "%s: write KEY=VALUE", option), 0;
    *value++ = 0;
    keys[count] = option, values[count] = value;
  }
  if (name == NULL) return 1;
  if (!is_available(name)) return 0;
  snprintf(provider, sizeof provider, "%s", name);
  const int append = strcmp(name, "Tensorrt") == 0 ? APPEND_TENSORRT : strcmp(name, "CUDA") == 0 ? APPEND_CUDA : 0;
  const int bad =
      append ? append_with_options(append, keys, values, count)
             : failed(((Status(*)(void *, const char *, const char *const *, const char *const *, size_t))api[APPEND_PROVIDER])(
                   options, name, keys, values, count));
  return !bad && !failed(((Status(*)(void *, const char *, const char *))api[ADD_SESSION_CONFIG_ENTRY])(
                     options, "session.disable_cpu_ep_fallback", "1"));
}

const TenonDevice *tenon_plugin_device(const char *argument, const char **why) {
  char given[TEXT];
  snprintf(given, sizeof given, "%s", argument);
  char *rest = given + strcspn(given, ",");
  if (*rest) *rest++ = 0;
  void *library = dlopen(*given ? given : "libonnxruntime.so", RTLD_NOW);
  const ApiBase *(*base)(void) =
      library != NULL ? (const ApiBase *(*)(void))(uintptr_t)dlsym(library, "OrtGetApiBase") : NULL;
  *why = message;
  if (base == NULL || (api = base()->get_api(1)) == NULL) {
    snprintf(message, sizeof message, "%s is no library of ONNX Runtime: give its path as the argument", given);
    return NULL;
  }
  if (failed(((Status(*)(int, const char *, void **))api[CREATE_ENV])(3, "tenon", &environment)) ||
      failed(((Status(*)(void **))api[CREATE_SESSION_OPTIONS])(&options)) ||
      failed(((Status(*)(int, int, void **))api[CREATE_CPU_MEMORY_INFO])(0, 0, &memory)) ||
      failed(((Status(*)(void **))api[GET_ALLOCATOR])(&allocator)) || !choose_provider(rest))
    return NULL;
  snprintf(description, sizeof description, "ONNX Runtime %s%s%s", base()->get_version(), *rest ? ", " : "", *rest ? provider : "");
  return &device;
}
