/* Runs of engines in MACE's manner: the tensors of the program go in and out, in its formats and types. */

#include "core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHAPE_TEXT = 22 * TENON_MAX_RANK };

/* An input of a run, with the number of the network's. */
typedef struct {
  const MaceCoreTensor *tensor; /* NULL: a state, which keeps what the run before left */
  TenonTensor about;
  Placement placement;
} Input;

static int check_tensor(const MaceCoreTensor *tensor, MaceError *error) {
  if (tensor->name == NULL) return mc_fail(error, MACE_INVALID_ARGS, "a tensor has no name");
  if (tensor->data == NULL) return mc_fail(error, MACE_INVALID_ARGS, "tensor '%s' has no data", tensor->name);
  if (tensor->rank < 0 || tensor->rank > TENON_MAX_RANK)
    return mc_fail(error, MACE_INVALID_ARGS, "tensor '%s' has %d axes", tensor->name, (int)tensor->rank);
  for (int i = 0; i < tensor->rank; i++)
    if (tensor->shape[i] < 0 || tensor->shape[i] > INT32_MAX)
      return mc_fail(error, MACE_INVALID_ARGS, "tensor '%s': an axis of %lld elements", tensor->name,
                     (long long)tensor->shape[i]);
  if (mc_type(tensor->type) == TENON_OTHER_TYPE)
    return mc_fail(error, MACE_INVALID_ARGS, "tensor '%s' has no data type", tensor->name);
  return MACE_SUCCESS;
}

static const MaceCoreTensor *named(const MaceCoreTensor *tensors, size_t count, const char *name) {
  for (size_t i = 0; i < count; i++)
    if (tensors[i].name != NULL && strcmp(tensors[i].name, name) == 0) return &tensors[i];
  return NULL;
}

static void write_shape(char *text, size_t size, const int64_t *shape, int rank) {
  size_t used = 0;
  *text = 0;
  for (int i = 0; i < rank && used < size; i++)
    used += (size_t)snprintf(text + used, size - used, "%s%lld", i ? "," : "", (long long)shape[i]);
}

/* ----------------------------------------------------------------------------------------------------------- inputs */

static int place_inputs(const MaceCore *core, const MaceCoreTensor *tensors, size_t count, Input *inputs, int *changed,
                        MaceError *error) {
  const TenonBundle *bundle = core->network.bundle;
  const int binding = tenon_engine_binding(core->network.engine), total = tenon_bundle_input_count(bundle);
  for (size_t i = 0; i < count; i++) {
    int number;
    const int code = check_tensor(&tensors[i], error);
    if (code != MACE_SUCCESS) return code;
    if (tenon_bundle_find_input(bundle, tensors[i].name, &number) != TENON_OK) return mc_fail_as(error, TENON_NOT_FOUND);
  }
  *changed = 0;
  for (int i = 0; i < total; i++) {
    Input *input = &inputs[i];
    const TenonStatus status = tenon_bundle_input(bundle, binding, i, &input->about);
    if (status != TENON_OK) return mc_fail_as(error, status);
    input->tensor = named(tensors, count, input->about.name);
    if (input->tensor == NULL && input->about.is_state) {
      memcpy(input->placement.shape, input->about.shape, sizeof input->placement.shape);
      continue;
    }
    if (input->tensor == NULL)
      return mc_fail(error, MACE_INVALID_ARGS, "there is no tensor for input '%s'", input->about.name);
    input->placement = mc_placement(&input->about, core->input_formats[i], input->tensor);
    if (input->tensor->rank != input->about.rank)
      return mc_fail(error, MACE_INVALID_ARGS, "input '%s' has %d axes, not %d", input->about.name,
                     (int)input->about.rank, (int)input->tensor->rank);
    for (int d = 0; d < input->about.rank; d++) *changed |= input->placement.shape[d] != input->about.shape[d];
  }
  return MACE_SUCCESS;
}

static int no_such_shape(const Input *input, MaceError *error) {
  char own[SHAPE_TEXT], given[SHAPE_TEXT];
  write_shape(own, sizeof own, input->about.shape, input->about.rank);
  write_shape(given, sizeof given, input->tensor->shape, input->tensor->rank);
  return mc_fail(error, MACE_INVALID_ARGS, "input '%s' has the shape %s, not %s: compile the model for that shape as well",
                 input->about.name, own, given);
}

/* Options "name=1,2,3" for the shapes of the inputs: a NULL-terminated list, and behind it the texts, to be freed at
   once; NULL if there is no memory. */
static const char **list_shapes(const Input *inputs, int count) {
  size_t room = ((size_t)count + 1) * sizeof(char *);
  for (int i = 0; i < count; i++) room += strlen(inputs[i].about.name) + 2 + SHAPE_TEXT;
  const char **list = calloc(1, room);
  char *text = (char *)(list + count + 1);
  for (int i = 0; i < count && list != NULL; i++) {
    const TenonTensor *about = &inputs[i].about;
    list[i] = text;
    const size_t name = strlen(about->name) + 1;
    snprintf(text, name + 1, "%s=", about->name);
    text += name;
    write_shape(text, SHAPE_TEXT, inputs[i].placement.shape, about->rank);
    text += strlen(text) + 1;
  }
  return list;
}

/* The network compiled for the shapes of the inputs. */
static int open_for(MaceCore *core, const Input *inputs, int count, int profile, Network *network, MaceError *error) {
  const char **shapes = list_shapes(inputs, count);
  if (shapes == NULL) return mc_fail(error, MACE_OUT_OF_RESOURCES, "no memory for the shapes of %d inputs", count);
  const int code = mc_open(core, shapes, profile, network, error);
  free(shapes);
  return code;
}

static TenonStatus select_shapes(MaceCore *core, const Input *inputs, int count) {
  size_t used = 0;
  int64_t *all = malloc(((size_t)count * TENON_MAX_RANK + 1) * sizeof *all);
  if (all == NULL) return TENON_OUT_OF_MEMORY;
  for (int i = 0; i < count; i++)
    for (int d = 0; d < inputs[i].about.rank; d++) all[used++] = inputs[i].placement.shape[d];
  const TenonStatus status = tenon_engine_select_shapes(core->network.engine, all, used);
  free(all);
  return status;
}

/* The input that has another shape than the network. */
static const Input *odd_input(const Input *inputs, int count) {
  for (int i = 0; i < count; i++)
    for (int d = 0; d < inputs[i].about.rank; d++)
      if (inputs[i].placement.shape[d] != inputs[i].about.shape[d]) return &inputs[i];
  return inputs;
}

/* Makes the network one for the shapes of the inputs: another binding, or the model compiled again. */
static int change_shapes(MaceCore *core, const Input *inputs, int count, MaceError *error) {
  const Input *odd = odd_input(inputs, count);
  if (core->graph == NULL || tenon_bundle_binding_count(core->network.bundle) > 1) {
    if (select_shapes(core, inputs, count) == TENON_OK) return MACE_SUCCESS;
    return no_such_shape(odd, error);
  }
  Network other = {NULL, NULL};
  const int code = open_for(core, inputs, count, 0, &other, error);
  if (code != MACE_SUCCESS) return code == MACE_RUNTIME_ERROR ? MACE_INVALID_ARGS : code; /* the shapes do not fit */
  TenonTensor about;
  if (tenon_bundle_input(other.bundle, 0, 0, &about) != TENON_OK ||
      (count > 0 && memcmp(about.shape, inputs[0].placement.shape, sizeof *about.shape * (size_t)about.rank) != 0)) {
    mc_close(&other); /* a bundle has the shapes that it was compiled for */
    return no_such_shape(odd, error);
  }
  mc_close(&core->network);
  mc_close(&core->profiled);
  core->network = other;
  return MACE_SUCCESS;
}

static int write_inputs(TenonEngine *engine, const Input *inputs, int count, MaceError *error) {
  for (int i = 0; i < count; i++) {
    const Input *input = &inputs[i];
    void *data;
    if (input->tensor == NULL) continue;
    const TenonStatus status = tenon_engine_input_data(engine, i, &data);
    if (status != TENON_OK) return mc_fail_as(error, status);
    if (!mc_to_network(&input->about, input->placement.shape, &input->placement, mc_type(input->tensor->type),
                       input->tensor->data, data))
      return mc_fail(error, MACE_UNSUPPORTED, "input '%s' holds elements of type %s", input->about.name,
                     input->about.type_name);
  }
  return MACE_SUCCESS;
}

/* ---------------------------------------------------------------------------------------------------------- outputs */

static int check_outputs(const MaceCore *core, const MaceCoreTensor *outputs, size_t count, MaceError *error) {
  for (size_t i = 0; i < count; i++) {
    int number;
    TenonTensor about;
    uint64_t room = 1, needed = 1;
    const int code = check_tensor(&outputs[i], error);
    if (code != MACE_SUCCESS) return code;
    const TenonBundle *bundle = core->network.bundle;
    TenonStatus status = tenon_bundle_find_output(bundle, outputs[i].name, &number);
    if (status == TENON_OK)
      status = tenon_bundle_output(bundle, tenon_engine_binding(core->network.engine), number, &about);
    if (status != TENON_OK) return mc_fail_as(error, status);
    for (int d = 0; d < outputs[i].rank; d++) room = room > UINT32_MAX ? room : room * (uint64_t)outputs[i].shape[d];
    for (int d = 0; d < about.rank; d++) needed *= (uint64_t)about.shape[d];
    if (room < needed)
      return mc_fail(error, MACE_INVALID_ARGS, "output '%s' has %llu elements, and the tensor room for %llu", about.name,
                     (unsigned long long)needed, (unsigned long long)room);
  }
  return MACE_SUCCESS;
}

static int read_output(const MaceCore *core, TenonEngine *engine, MaceCoreTensor *output, MaceError *error) {
  const TenonBundle *bundle = core->network.bundle;
  int number, rank;
  void *data;
  TenonTensor about;
  TenonStatus status = tenon_bundle_find_output(bundle, output->name, &number);
  if (status == TENON_OK) status = tenon_bundle_output(bundle, tenon_engine_binding(engine), number, &about);
  if (status == TENON_OK) status = tenon_engine_output_data(engine, number, &data);
  if (status != TENON_OK) return mc_fail_as(error, status);
  mc_log_range(&about, data);
  const int format = core->output_formats[number];
  const Placement placement = mc_placement(&about, format, output);
  if (!mc_from_network(&about, about.shape, &placement, mc_type(output->type), data, output->data))
    return mc_fail(error, MACE_UNSUPPORTED, "output '%s' holds elements of type %s", about.name, about.type_name);
  status = tenon_engine_output_shape(engine, number, output->shape, &rank);
  if (status != TENON_OK) return mc_fail_as(error, status);
  output->rank = rank;
  if (placement.turned == 0) return MACE_SUCCESS;
  int64_t shape[4];
  memcpy(shape, output->shape, sizeof shape);
  static const int back[4] = {0, 2, 3, 1}, front[4] = {0, 3, 1, 2};
  for (int i = 0; i < 4; i++) output->shape[i] = shape[(placement.turned == NHWC ? back : front)[i]];
  return MACE_SUCCESS;
}

/* ------------------------------------------------------------------------------------------------------------- runs */

static int checked(const MaceCore *core, const MaceCoreTensor *inputs, size_t input_count,
                   const MaceCoreTensor *outputs, size_t output_count, MaceError *error) {
  if (mc_valid(core, error) != MACE_SUCCESS) return MACE_INVALID_ARGS;
  if ((inputs == NULL && input_count > 0) || (outputs == NULL && output_count > 0))
    return mc_fail(error, MACE_INVALID_ARGS, "the inputs or outputs are NULL");
  return MACE_SUCCESS;
}

/* Makes the network ready for the inputs, which lie in `placed` then. */
static int prepare(MaceCore *core, const MaceCoreTensor *inputs, size_t input_count, const MaceCoreTensor *outputs,
                   size_t output_count, Input *placed, MaceError *error) {
  int changed;
  int code = place_inputs(core, inputs, input_count, placed, &changed, error);
  if (code == MACE_SUCCESS && changed) {
    code = change_shapes(core, placed, tenon_bundle_input_count(core->network.bundle), error);
    if (code == MACE_SUCCESS) code = place_inputs(core, inputs, input_count, placed, &changed, error);
  }
  return code == MACE_SUCCESS ? check_outputs(core, outputs, output_count, error) : code;
}

static int read_outputs(const MaceCore *core, TenonEngine *engine, MaceCoreTensor *outputs, size_t count,
                        MaceError *error) {
  int code = MACE_SUCCESS;
  for (size_t i = 0; i < count && code == MACE_SUCCESS; i++) code = read_output(core, engine, &outputs[i], error);
  return code;
}

/* Room for the inputs of a run, to be freed; NULL if there is no memory. */
static Input *new_inputs(const MaceCore *core, MaceError *error) {
  Input *placed = calloc((size_t)tenon_bundle_input_count(core->network.bundle) + 1, sizeof *placed);
  if (placed == NULL) mc_fail(error, MACE_OUT_OF_RESOURCES, "no memory for the inputs of a run");
  return placed;
}

static int run_placed(MaceCore *core, const Input *placed, MaceCoreTensor *outputs, size_t output_count, MaceError *error) {
  TenonEngine *engine = core->network.engine;
  const int code = write_inputs(engine, placed, tenon_bundle_input_count(core->network.bundle), error);
  if (code != MACE_SUCCESS) return code;
  const TenonStatus status = tenon_engine_run(engine);
  return status == TENON_OK ? read_outputs(core, engine, outputs, output_count, error) : mc_fail_as(error, status);
}

int mace_core_run(MaceCore *core, const MaceCoreTensor *inputs, size_t input_count, MaceCoreTensor *outputs,
                  size_t output_count, MaceError *error) {
  int code = checked(core, inputs, input_count, outputs, output_count, error);
  if (code != MACE_SUCCESS) return code;
  Input *placed = new_inputs(core, error);
  if (placed == NULL) return MACE_OUT_OF_RESOURCES;
  code = prepare(core, inputs, input_count, outputs, output_count, placed, error);
  if (code == MACE_SUCCESS) code = run_placed(core, placed, outputs, output_count, error);
  free(placed);
  return code;
}

/* -------------------------------------------------------------------------------------------------------- profiling */

static int stamp_steps(MaceCore *core, const TenonBundle *bundle, size_t count, MaceError *error) {
  MaceCoreStep *steps = calloc(count + 1, sizeof *steps);
  if (steps == NULL) return mc_fail(error, MACE_OUT_OF_RESOURCES, "no memory for the times of %zu steps", count);
  free(core->steps);
  core->steps = steps;
  uint64_t passed = 0;
  const int64_t begin = mace_core_micros();
  for (size_t i = 0; i < count; i++) {
    TenonStep step;
    const TenonStatus status = tenon_bundle_step(bundle, (int)i, &step);
    if (status != TENON_OK) return mc_fail_as(error, status);
    steps[i].layer = step.layer;
    steps[i].op = step.op;
    steps[i].start_micros = begin + (int64_t)(passed / 1000);
    passed += core->nanoseconds[i];
    steps[i].end_micros = begin + (int64_t)(passed / 1000);
  }
  return MACE_SUCCESS;
}

static int run_profiled(MaceCore *core, const Network *network, size_t *count, MaceError *error) {
  *count = (size_t)tenon_bundle_step_count(network->bundle);
  uint64_t *nanoseconds = realloc(core->nanoseconds, (*count + 1) * sizeof *nanoseconds);
  if (nanoseconds == NULL) return mc_fail(error, MACE_OUT_OF_RESOURCES, "no memory for the times of %zu steps", *count);
  core->nanoseconds = nanoseconds;
  const TenonStatus status = tenon_engine_profile(network->engine, nanoseconds, *count);
  if (status == TENON_WRONG_STATE) return mc_fail(error, MACE_UNSUPPORTED, "%s", tenon_last_error()); /* another binding */
  return status == TENON_OK ? stamp_steps(core, network->bundle, *count, error) : mc_fail_as(error, status);
}

static int profile_placed(MaceCore *core, const Input *placed, MaceCoreTensor *outputs, size_t output_count,
                          size_t *step_count, MaceError *error) {
  const Network *network = core->graph == NULL ? &core->network : &core->profiled; /* a model in code is one network */
  const int total = tenon_bundle_input_count(core->network.bundle);
  int code = MACE_SUCCESS;
  if (core->graph != NULL && core->profiled.engine == NULL) code = open_for(core, placed, total, 1, &core->profiled, error);
  if (code == MACE_SUCCESS) code = write_inputs(network->engine, placed, total, error);
  if (code == MACE_SUCCESS) code = run_profiled(core, network, step_count, error);
  if (code == MACE_SUCCESS) return read_outputs(core, network->engine, outputs, output_count, error);
  *step_count = 0;
  return code;
}

int mace_core_profile(MaceCore *core, const MaceCoreTensor *inputs, size_t input_count, MaceCoreTensor *outputs,
                      size_t output_count, const MaceCoreStep **steps, size_t *step_count, MaceError *error) {
  if (steps == NULL || step_count == NULL) return mc_fail(error, MACE_INVALID_ARGS, "there is no room for the steps");
  *steps = NULL;
  *step_count = 0;
  int code = checked(core, inputs, input_count, outputs, output_count, error);
  if (code != MACE_SUCCESS) return code;
  Input *placed = new_inputs(core, error);
  if (placed == NULL) return MACE_OUT_OF_RESOURCES;
  code = prepare(core, inputs, input_count, outputs, output_count, placed, error);
  if (code == MACE_SUCCESS) code = profile_placed(core, placed, outputs, output_count, step_count, error);
  free(placed);
  if (code == MACE_UNSUPPORTED) /* a network that was compiled without times */
    return mace_core_run(core, inputs, input_count, outputs, output_count, error);
  if (code == MACE_SUCCESS) *steps = core->steps;
  else *step_count = 0;
  return code;
}
