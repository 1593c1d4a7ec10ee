/* Engines in MACE's manner: made from models, bundles or code. */

#include "core.h"
#include "errors.h"
#include "platform.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint64_t alive = 0x4d41434520454e47;

int mc_fail(MaceError *error, int code, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  if (error != NULL) vsnprintf(error->text, sizeof error->text, format, arguments);
  va_end(arguments);
  return code;
}

int mc_fail_as(MaceError *error, TenonStatus status) {
  int code = MACE_RUNTIME_ERROR;
  switch (status) {
  case TENON_INVALID_HANDLE: case TENON_INVALID_ARGUMENT: case TENON_NOT_FOUND: case TENON_WRONG_SIZE:
    code = MACE_INVALID_ARGS;
    break;
  case TENON_OUT_OF_MEMORY: code = MACE_OUT_OF_RESOURCES; break;
  case TENON_UNSUPPORTED: case TENON_WRONG_MACHINE: case TENON_NO_COMPILER: code = MACE_UNSUPPORTED; break;
  default: break;
  }
  return mc_fail(error, code, "%s", tenon_last_error());
}

int mc_valid(const MaceCore *core, MaceError *error) {
  if (core != NULL && core->mark == alive) return MACE_SUCCESS;
  return mc_fail(error, MACE_INVALID_ARGS, "the engine was not initialized, or is destroyed: call Init first");
}

/* ---------------------------------------------------------------------------------------------------------- opening */

static int create_engine(const MaceCore *core, Network *network, MaceError *error) {
  TenonEngineOptions options = TENON_ENGINE_OPTIONS_INIT;
  if (mc_simulates_failure())
    return mc_fail(error, MACE_OUT_OF_RESOURCES, "an allocation failed, as MACE_RUNTIME_FAILURE_RATIO asks for");
  const int most = tenon_bundle_max_threads(network->bundle), wanted = core->config.threads;
  const int policy = core->config.policy;
  options.threads = wanted < 1 || wanted > most ? most : wanted;
  if (policy == 1 || policy == 3) options.cores = TENON_BIG_CORES;
  if (policy == 2 || policy == 4) options.cores = TENON_LITTLE_CORES;
  /* A network that replaces another or profiles it shares that one's memory, the first one the tutor's. */
  options.share_activations = core->network.engine;
  if (core->config.tutor != NULL) options.share_activations = core->config.tutor->network.engine;
  options.gpu = core->gpu;
  TenonStatus status = tenon_engine_create(network->bundle, &options, &network->engine);
  if (status == TENON_UNSUPPORTED && options.cores != TENON_ALL_CORES) {
    options.cores = TENON_ALL_CORES; /* a system that does not tell kinds of cores apart */
    status = tenon_engine_create(network->bundle, &options, &network->engine);
  }
  if (status == TENON_OK) status = tenon_engine_prepare(network->engine);
  return status == TENON_OK ? MACE_SUCCESS : mc_fail_as(error, status);
}

void mc_close(Network *network) {
  if (network->engine != NULL) tenon_engine_destroy(network->engine);
  if (network->bundle != NULL) tenon_bundle_close(network->bundle);
  network->engine = NULL;
  network->bundle = NULL;
}

static int is_bundle(const MaceCore *core) {
  static const char magic[8] = {'T', 'E', 'N', 'O', 'N', '\r', '\n', 0x1a};
  return core->graph_size >= sizeof magic && memcmp(core->graph, magic, sizeof magic) == 0;
}

/* A model is compiled for the GPU.  A bundle for the processor, parts of which run on GPUs, counts as one for a GPU, and on
   the CPU all of it runs there. */
static TenonStatus open_network(const MaceCore *core, TenonOpenOptions *options, Network *network) {
  const int on_gpu = core->config.runtime == RT_OPENCL, made = is_bundle(core);
  options->target = on_gpu && !made ? "opencl" : !on_gpu && made ? "host" : NULL;
  TenonStatus status = tenon_bundle_open_memory(core->graph, core->graph_size, options, &network->bundle);
  if (!on_gpu || !made || (status == TENON_OK && tenon_bundle_device(network->bundle) != NULL)) return status;
  if (status == TENON_OK) tenon_bundle_close(network->bundle);
  network->bundle = NULL;
  options->target = "opencl";
  return tenon_bundle_open_memory(core->graph, core->graph_size, options, &network->bundle);
}

int mc_open(MaceCore *core, const char *const *shapes, int profile, Network *network, MaceError *error) {
  static const char *const timed[] = {"--profile", NULL};
  TenonOpenOptions options = TENON_OPEN_OPTIONS_INIT;
  options.model_name = "model.pb";
  options.weights = core->weights_file;
  options.weights_data = core->weights;
  options.weights_bytes = core->weights_size;
  options.shapes = shapes;
  options.arguments = profile ? timed : NULL;
  const TenonStatus status = open_network(core, &options, network);
  if (status != TENON_OK) return mc_fail_as(error, status);
  const int code = create_engine(core, network, error);
  if (code != MACE_SUCCESS) mc_close(network);
  return code;
}

static int open_linked(MaceCore *core, const MaceModel *model, MaceError *error) {
  TenonLinked linked = {0}; /* the program's may be of an older header */
  const size_t given = model->linked->struct_size;
  memcpy(&linked, model->linked, given < sizeof linked ? given : sizeof linked);
  if (given > sizeof linked) linked.struct_size = sizeof linked;
  if (model->weights != NULL && model->weights_size > 0) {
    if (linked.weights_bytes != model->weights_size)
      return mc_fail(error, MACE_INVALID_ARGS, "the model's weights have %zu bytes, not %zu: give those of this model",
                     linked.weights_bytes, model->weights_size);
    if ((uintptr_t)model->weights % 64 == 0 || linked.weights == NULL) linked.weights = model->weights;
  }
  const TenonStatus status = tenon_bundle_from_program(&linked, &core->network.bundle);
  return status == TENON_OK ? create_engine(core, &core->network, error) : mc_fail_as(error, status);
}

/* ------------------------------------------------------------------------------------------------------------ names */

static int check_names(const MaceCore *core, const char *const *names, size_t count, int is_output, MaceError *error) {
  const TenonBundle *bundle = core->network.bundle;
  for (size_t i = 0; i < count; i++) {
    int number;
    if (names[i] == NULL) return mc_fail(error, MACE_INVALID_ARGS, "a name of an input or output is NULL");
    if ((is_output ? tenon_bundle_find_output : tenon_bundle_find_input)(bundle, names[i], &number) != TENON_OK)
      return mc_fail_as(error, TENON_NOT_FOUND);
  }
  return MACE_SUCCESS;
}

static int read_formats(MaceCore *core, MaceError *error) {
  const TenonBundle *bundle = core->network.bundle;
  const int inputs = tenon_bundle_input_count(bundle), outputs = tenon_bundle_output_count(bundle);
  const uint8_t *graph = core->graph;
  core->input_formats = calloc((size_t)inputs + 1, sizeof *core->input_formats);
  core->output_formats = calloc((size_t)outputs + 1, sizeof *core->output_formats);
  if (core->input_formats == NULL || core->output_formats == NULL)
    return mc_fail(error, MACE_OUT_OF_RESOURCES, "no memory for an engine");
  for (int i = 0; i < inputs + outputs; i++) {
    TenonTensor tensor;
    int32_t *format = i < inputs ? &core->input_formats[i] : &core->output_formats[i - inputs];
    *format = FORMAT_UNKNOWN;
    const TenonStatus status =
        i < inputs ? tenon_bundle_input(bundle, 0, i, &tensor) : tenon_bundle_output(bundle, 0, i - inputs, &tensor);
    if (status == TENON_OK && graph != NULL) *format = mc_format_of(graph, core->graph_size, tensor.name);
  }
  return MACE_SUCCESS;
}

/* --------------------------------------------------------------------------------------------------- life of engines */

void mace_core_destroy(MaceCore *core) {
  if (mc_valid(core, NULL) != MACE_SUCCESS) return;
  core->mark = 0;
  mc_close(&core->network);
  mc_close(&core->profiled);
  free(core->graph);
  free(core->weights_file);
  free(core->gpu);
  free(core->input_formats);
  free(core->output_formats);
  free(core->nanoseconds);
  free(core->steps);
  free(core);
}

static void *copied(const void *from, size_t size) {
  void *copy = malloc(size + 1);
  if (copy != NULL) memcpy(copy, from, size), ((char *)copy)[size] = 0;
  return copy;
}

static int check_arguments(const MaceModel *model, const char *const *inputs, size_t input_count,
                           const char *const *outputs, size_t output_count, const MaceCoreConfig *config,
                           MaceCore **core, MaceError *error) {
  if (model == NULL || config == NULL || core == NULL || (inputs == NULL && input_count > 0) ||
      (outputs == NULL && output_count > 0))
    return mc_fail(error, MACE_INVALID_ARGS, "an argument is NULL");
  if (model->linked == NULL && (model->graph == NULL || model->graph_size == 0))
    return mc_fail(error, MACE_INVALID_ARGS, "the model's graph is empty");
  if (model->weights == NULL && model->weights_size > 0)
    return mc_fail(error, MACE_INVALID_ARGS, "the model's weights are NULL, and have %zu bytes", model->weights_size);
  if (config->runtime == RT_OPENCL && model->linked != NULL)
    return mc_fail(error, MACE_UNSUPPORTED, "a model that is compiled into the program runs on the CPU: give a model in a file");
  if (config->runtime != RT_CPU && config->runtime != RT_OPENCL && config->runtime != RT_NONE)
    return mc_fail(error, MACE_UNSUPPORTED, "runtime %d is not available: the CPU and GPUs are", (int)config->runtime);
  if (config->policy < 0 || config->policy > 4)
    return mc_fail(error, MACE_INVALID_ARGS, "there is no CPU affinity policy %d", (int)config->policy);
  return config->tutor != NULL ? mc_valid(config->tutor, error) : MACE_SUCCESS;
}

static int fill(MaceCore *core, const MaceModel *model, const char *const *inputs, size_t input_count,
                const char *const *outputs, size_t output_count, MaceError *error) {
  core->weights = model->weights;
  core->weights_size = model->weights_size;
  if (model->linked == NULL && (core->graph = copied(model->graph, model->graph_size)) == NULL)
    return mc_fail(error, MACE_OUT_OF_RESOURCES, "no memory for a graph of %zu bytes", model->graph_size);
  core->graph_size = model->graph_size;
  if (model->weights_file != NULL && *model->weights_file &&
      (core->weights_file = copied(model->weights_file, strlen(model->weights_file))) == NULL)
    return mc_fail(error, MACE_OUT_OF_RESOURCES, "no memory for an engine");
  int code = model->linked != NULL ? open_linked(core, model, error) : mc_open(core, NULL, 0, &core->network, error);
  if (code == MACE_SUCCESS) code = check_names(core, inputs, input_count, 0, error);
  if (code == MACE_SUCCESS) code = check_names(core, outputs, output_count, 1, error);
  if (code == MACE_SUCCESS) code = read_formats(core, error);
  if (code != MACE_SUCCESS || !core->config.warm_up) return code;
  TenonEngine *engine = core->network.engine;
  if (tenon_engine_run(engine) == TENON_OK && tenon_engine_reset(engine) == TENON_OK) return MACE_SUCCESS;
  return mc_fail(error, MACE_RUNTIME_ERROR, "%s", tenon_last_error());
}

int mace_core_create(const MaceModel *model, const char *const *inputs, size_t input_count, const char *const *outputs,
                     size_t output_count, const MaceCoreConfig *config, MaceCore **result, MaceError *error) {
  int code = check_arguments(model, inputs, input_count, outputs, output_count, config, result, error);
  if (code != MACE_SUCCESS) return code;
  MaceCore *core = calloc(1, sizeof *core);
  if (core == NULL) return mc_fail(error, MACE_OUT_OF_RESOURCES, "no memory for an engine");
  core->mark = alive;
  core->config = *config;
  core->gpu = mc_gpu_lines(config->gpu);
  if (core->gpu == NULL) code = mc_fail(error, MACE_OUT_OF_RESOURCES, "no memory for an engine");
  if (code == MACE_SUCCESS) code = fill(core, model, inputs, input_count, outputs, output_count, error);
  core->config.tutor = NULL; /* which may end before this engine */
  core->config.gpu = NULL;
  if (code == MACE_SUCCESS) *result = core;
  else mace_core_destroy(core);
  return code;
}

int mace_core_release_memory(MaceCore *core, MaceError *error) {
  if (mc_valid(core, error) != MACE_SUCCESS) return MACE_INVALID_ARGS;
  const TenonStatus status = tenon_engine_release_memory(core->network.engine);
  return status == TENON_OK ? MACE_SUCCESS : mc_fail_as(error, status);
}

/* ------------------------------------------------------------------------------------------------------- the machine */

const char *mace_core_version(void) { return "1.1.1-tenon-" TENON_VERSION; }

/* Stand-ins for what functions of platform.c would call that are not called here; linkers for Windows want it. */
TenonStatus tn_fail(TenonStatus status, const char *format, ...) { return (void)format, status; }

int64_t mace_core_micros(void) { return (int64_t)(tn_clock() / 1000); }

/* A matrix product of 2 ** 23 multiply-accumulates. */
float mace_core_cpu_time(void) {
  enum { SIZE = 128, ROUNDS = 4 };
  static float a[SIZE][SIZE], b[SIZE][SIZE];
  float(*c)[SIZE] = calloc(SIZE, sizeof *c);
  if (c == NULL) return 0;
  for (int i = 0; i < SIZE; i++)
    for (int j = 0; j < SIZE; j++) a[i][j] = b[j][i] = (float)(i + j) / SIZE;
  const uint64_t begin = tn_clock();
  for (int round = 0; round < ROUNDS; round++)
    for (int i = 0; i < SIZE; i++)
      for (int k = 0; k < SIZE; k++)
        for (int j = 0; j < SIZE; j++) c[i][j] += a[i][k] * b[k][j];
  volatile float kept = c[SIZE - 1][SIZE - 1];
  (void)kept;
  const float time = (float)(tn_clock() - begin) / 1e6f;
  free(c);
  return time;
}
