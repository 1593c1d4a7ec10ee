/* Create engines, choose their binding, and reach their inputs and outputs. */

#include "engine.h"

#include <stdlib.h>
#include <string.h>

/* --------------------------------------------------------------------------------------------------------- creation */

static TenonStatus choose_numbered(Engine *engine, const TenonEngineOptions *options, const Processors *own) {
  for (int i = 0; i < options->processor_count; i++) {
    const int32_t number = options->processors[i];
    if (number < 0 || number >= MAX_PROCESSORS || !own->present[number])
      return tn_fail(TENON_INVALID_ARGUMENT, "options.processors: this process has no processor %d", (int)number);
    engine->processors.present[number] = 1;
  }
  return TENON_OK;
}

/* The fastest or slowest; all where they are equal or their speeds are unknown. */
static void choose_kind(Engine *engine, int32_t cores, const Processors *own) {
  long speeds[MAX_PROCESSORS], best = -1;
  for (int i = 0; i < MAX_PROCESSORS; i++) {
    if (!own->present[i]) continue;
    speeds[i] = tn_processor_speed(i);
    if (best < 0 || (cores == TENON_BIG_CORES ? speeds[i] > best : speeds[i] < best)) best = speeds[i];
  }
  for (int i = 0; i < MAX_PROCESSORS; i++) engine->processors.present[i] = own->present[i] && speeds[i] == best;
}

static TenonStatus choose_processors(Engine *engine, const TenonEngineOptions *options) {
  Processors own;
  if (options->cores < TENON_ALL_CORES || options->cores > TENON_LITTLE_CORES)
    return tn_fail(TENON_INVALID_ARGUMENT, "options.cores is %d: choose one of TenonCores", (int)options->cores);
  if (options->processor_count < 0 || (options->processor_count > 0 && options->processors == NULL))
    return tn_fail(TENON_INVALID_ARGUMENT, "options.processors is NULL for %d processors", (int)options->processor_count);
  const int listed = options->processors != NULL && options->processor_count > 0;
  if (!listed && options->cores == TENON_ALL_CORES) return TENON_OK;
  if (listed && options->cores != TENON_ALL_CORES)
    return tn_fail(TENON_INVALID_ARGUMENT, "options.processors and options.cores exclude each other");
  if (!tn_can_pin() || !tn_own_processors(&own))
    return tn_fail(TENON_UNSUPPORTED, "this operating system does not let a program choose its processors");
  engine->is_pinned = 1;
  if (listed) return choose_numbered(engine, options, &own);
  choose_kind(engine, options->cores, &own);
  return TENON_OK;
}

static TenonStatus choose_threads(Engine *engine, const TenonEngineOptions *options) {
  const Description *about = &engine->bundle->about;
  engine->threads = options->threads ? options->threads : 1;
#ifdef TENON_NO_THREAD_POOL
  const int most = 1;
#else
  const int most = about->threads;
#endif
  if (engine->threads >= 1 && engine->threads <= most) return TENON_OK;
  return tn_fail(TENON_INVALID_ARGUMENT, "options.threads is %d: %s was made for 1 to %d: compile it with --threads",
                 (int)options->threads, about->name, most);
}

/* At least 1, and a multiple of the alignment. */
static size_t tensor_bytes(const Description *about) {
  return (size_t)((about->mutable_bytes + about->alignment) / about->alignment * about->alignment);
}

TenonStatus tn_take_buffers(Engine *engine, size_t activations) {
  const Description *about = &engine->bundle->about;
  const Binding *first = about->bindings;
  engine->tensors = tn_aligned_memory(tensor_bytes(about) + activations, (size_t)about->alignment);
  engine->bound_inputs = calloc((size_t)first->input_count + 1, sizeof *engine->bound_inputs);
  engine->bound_outputs = calloc((size_t)first->output_count + 1, sizeof *engine->bound_outputs);
  engine->pools = calloc((size_t)about->binding_count + 1, sizeof *engine->pools);
  if (engine->tensors == NULL || engine->bound_inputs == NULL || engine->bound_outputs == NULL || engine->pools == NULL)
    return tn_fail(TENON_OUT_OF_MEMORY, "%s: no memory for an engine", about->name);
  if (engine->bundle->device != NULL && (engine->parts = tn_device_parts(engine->bundle)) == NULL)
    return tn_fail(TENON_OUT_OF_MEMORY, "%s: no memory for an engine", about->name);
  return TENON_OK;
}

void tn_release_buffers(Engine *engine) {
  if (engine->is_home) tn_activations_settle(engine->activations, NULL, 0);
  engine->is_home = 0;
  tn_end_parts(engine);
  tn_aligned_release(engine->tensors);
  free(engine->bound_inputs);
  free(engine->bound_outputs);
  free(engine->pools);
}

static TenonStatus take_memory(Engine *engine, const TenonEngineOptions *options) {
  const Description *about = &engine->bundle->about;
  Engine *other = NULL;
  if (options->share_activations != NULL) {
    if ((other = tn_handle_object(ENGINE_HANDLE, options->share_activations)) == NULL) return TENON_INVALID_HANDLE;
    tn_activations_retain(other->activations);
  }
  engine->activations = other != NULL ? other->activations : tn_activations_new();
  const size_t own = other == NULL && TN_GIVES_BACK ? (size_t)about->activations : 0;
  const TenonStatus status = tn_take_buffers(engine, own);
  if (status != TENON_OK) return status;
  if (engine->activations == NULL) return tn_fail(TENON_OUT_OF_MEMORY, "%s: no memory for an engine", about->name);
  tn_activations_want(engine->activations, (size_t)about->activations, (size_t)about->alignment);
  if (own > 0) tn_activations_settle(engine->activations, engine->tensors + tensor_bytes(about), own);
  engine->is_home = own > 0;
  return TENON_OK;
}

static TenonStatus set_up(Engine *engine, const TenonEngineOptions *options) {
  const Description *about = &engine->bundle->about;
  TenonStatus status = choose_threads(engine, options);
  if (status == TENON_OK) status = choose_processors(engine, options);
  if (status == TENON_OK && (options->binding < 0 || options->binding >= about->binding_count))
    status = tn_fail(TENON_NOT_FOUND, "%s has no binding %d: it has %d, from 0 on", about->name, (int)options->binding,
                     about->binding_count);
  if (status == TENON_OK) status = take_memory(engine, options);
  engine->binding = options->binding;
  return status;
}

static void end(Engine *engine) {
  if (engine->pools != NULL) tn_stop_pools(engine);
  tn_release_buffers(engine);
  tn_activations_release(engine->activations);
  tn_bundle_release(engine->bundle);
  tn_bundle_release(engine->opened);
  free(engine);
}

TenonStatus tenon_engine_create(TenonBundle *handle, const TenonEngineOptions *given, TenonEngine **result) {
  TenonEngineOptions options;
  Bundle *bundle = tn_handle_object(BUNDLE_HANDLE, handle);
  if (bundle == NULL) return TENON_INVALID_HANDLE;
  if (result == NULL) return tn_fail(TENON_INVALID_ARGUMENT, "tenon_engine_create: the result is NULL");
  TenonStatus status = tn_options(given, &options, sizeof options, "TENON_ENGINE_OPTIONS_INIT");
  if (status != TENON_OK) return status;
  Engine *engine = calloc(1, sizeof *engine);
  if (engine == NULL) return tn_fail(TENON_OUT_OF_MEMORY, "no memory for an engine");
  tn_monitor_init(&engine->monitor);
  tn_bundle_retain(bundle);
  tn_bundle_retain(bundle);
  engine->bundle = engine->opened = bundle;
  engine->process = tn_process();
  status = set_up(engine, &options);
  if (status == TENON_OK && (engine->handle = tn_handle_new(ENGINE_HANDLE, engine)) == NULL)
    status = tn_fail(TENON_OUT_OF_MEMORY, "no room for one more engine");
  if (status == TENON_OK) *result = engine->handle;
  else end(engine);
  return status;
}

TenonStatus tenon_engine_destroy(TenonEngine *handle) {
  Engine *engine = tn_handle_object(ENGINE_HANDLE, handle);
  if (engine == NULL) return TENON_INVALID_HANDLE;
  if (!tn_stop_worker(engine))
    return tn_fail(TENON_BUSY, "%s: a callback cannot destroy its engine", engine->opened->about.name);
  tn_handle_end(handle);
  end(engine);
  return TENON_OK;
}

/* ------------------------------------------------------------------------------------------------ inputs and outputs */

static TenonStatus find_port(const Engine *engine, int number, int output, const Port **port) {
  const Binding *binding = tn_engine_binding(engine);
  const int count = output ? binding->output_count : binding->input_count;
  if (number < 0 || number >= count)
    return tn_fail(TENON_NOT_FOUND, "%s has no %s %d: it has %d, from 0 on", engine->bundle->about.name,
                   output ? "output" : "input", number, count);
  *port = &(output ? binding->outputs : binding->inputs)[number];
  return TENON_OK;
}

static TenonStatus port_of(TenonEngine *handle, int number, int output, Engine **engine, const Port **port) {
  const TenonStatus status = tn_engine_enter(handle, engine);
  return status == TENON_OK ? find_port(*engine, number, output, port) : status;
}

/* Also during a run, which does not change it. */
static TenonStatus describe(const TenonEngine *handle, int number, int output, TenonTensor *tensor) {
  const Engine *engine = tn_handle_object(ENGINE_HANDLE, handle);
  const Port *port;
  const TenonStatus status = engine != NULL ? find_port(engine, number, output, &port) : TENON_INVALID_HANDLE;
  if (status != TENON_OK) return status;
  if (tensor == NULL) return tn_fail(TENON_INVALID_ARGUMENT, "%s: the result is NULL", port->tensor.name);
  *tensor = port->tensor;
  return TENON_OK;
}

TenonStatus tenon_engine_input(const TenonEngine *engine, int input, TenonTensor *tensor) {
  return describe(engine, input, 0, tensor);
}

TenonStatus tenon_engine_output(const TenonEngine *engine, int output, TenonTensor *tensor) {
  return describe(engine, output, 1, tensor);
}

static TenonStatus memory_of(TenonEngine *handle, int number, int output, void **data) {
  Engine *engine;
  const Port *port;
  const TenonStatus status = port_of(handle, number, output, &engine, &port);
  if (status != TENON_OK) return status;
  if (data == NULL) return tn_fail(TENON_INVALID_ARGUMENT, "%s: the result is NULL", port->tensor.name);
  *data = engine->tensors + port->offset;
  return TENON_OK;
}

TenonStatus tenon_engine_input_data(TenonEngine *engine, int input, void **data) {
  return memory_of(engine, input, 0, data);
}

TenonStatus tenon_engine_output_data(TenonEngine *engine, int output, void **data) {
  return memory_of(engine, output, 1, data);
}

static TenonStatus check_buffer(const Engine *engine, const Port *port, const void *data, size_t bytes) {
  const TenonTensor *tensor = &port->tensor;
  if (data == NULL && bytes > 0)
    return tn_fail(TENON_INVALID_ARGUMENT, "%s: the buffer for '%s' is NULL", engine->bundle->about.name, tensor->name);
  if (bytes == tensor->bytes) return TENON_OK;
  return tn_fail(TENON_WRONG_SIZE, "%s: the buffer for '%s' has %zu bytes and the tensor %llu", engine->bundle->about.name,
                 tensor->name, bytes, (unsigned long long)tensor->bytes);
}

TenonStatus tenon_engine_set_input(TenonEngine *handle, int input, const void *data, size_t bytes) {
  Engine *engine;
  const Port *port;
  TenonStatus status = port_of(handle, input, 0, &engine, &port);
  if (status == TENON_OK) status = check_buffer(engine, port, data, bytes);
  if (status != TENON_OK) return status;
  if (bytes > 0) memmove(engine->tensors + port->offset, data, bytes);
  return TENON_OK;
}

TenonStatus tenon_engine_get_output(TenonEngine *handle, int output, void *data, size_t bytes) {
  Engine *engine;
  const Port *port;
  TenonStatus status = port_of(handle, output, 1, &engine, &port);
  if (status == TENON_OK) status = check_buffer(engine, port, data, bytes);
  if (status != TENON_OK) return status;
  if (bytes > 0) memmove(data, engine->tensors + port->offset, bytes);
  return TENON_OK;
}

TenonStatus tenon_engine_bind_input(TenonEngine *handle, int input, const void *data, size_t bytes) {
  Engine *engine;
  const Port *port;
  TenonStatus status = port_of(handle, input, 0, &engine, &port);
  if (status == TENON_OK && data != NULL) status = check_buffer(engine, port, data, bytes);
  if (status == TENON_OK) engine->bound_inputs[input] = data;
  return status;
}

TenonStatus tenon_engine_bind_output(TenonEngine *handle, int output, void *data, size_t bytes) {
  Engine *engine;
  const Port *port;
  TenonStatus status = port_of(handle, output, 1, &engine, &port);
  if (status == TENON_OK && data != NULL) status = check_buffer(engine, port, data, bytes);
  if (status == TENON_OK) engine->bound_outputs[output] = data;
  return status;
}

static int64_t integer_at(const Engine *engine, const Port *port) {
  const uint8_t *data = engine->tensors + port->offset;
  int64_t wide;
  int32_t narrow;
  if (port->tensor.type == TENON_I64) return memcpy(&wide, data, sizeof wide), wide;
  if (port->tensor.type == TENON_I32) return memcpy(&narrow, data, sizeof narrow), narrow;
  return INT64_MAX; /* all of it */
}

TenonStatus tenon_engine_output_shape(TenonEngine *handle, int output, int64_t shape[TENON_MAX_RANK], int *rank) {
  Engine *engine;
  const Port *port;
  const TenonStatus status = port_of(handle, output, 1, &engine, &port);
  if (status != TENON_OK) return status;
  if (shape == NULL || rank == NULL)
    return tn_fail(TENON_INVALID_ARGUMENT, "tenon_engine_output_shape: a result is NULL");
  const TenonTensor *tensor = &port->tensor;
  memcpy(shape, tensor->shape, sizeof tensor->shape);
  *rank = tensor->rank;
  if (tensor->extent_axis < 0) return TENON_OK;
  const Port *counted = &tn_engine_binding(engine)->outputs[tensor->extent_output];
  const int64_t count = counted->tensor.bytes > 0 ? integer_at(engine, counted) : INT64_MAX;
  int64_t *extent = &shape[tensor->extent_axis];
  if (count < *extent) *extent = count < 0 ? 0 : count;
  return TENON_OK;
}

/* -------------------------------------------------------------------------------------------------- memory, profiles */

TenonStatus tenon_engine_release_memory(TenonEngine *handle) {
  Engine *engine;
  const TenonStatus status = tn_engine_take(handle, &engine);
  if (status != TENON_OK) return status;
  tn_activations_drop(engine->activations);
  tn_stop_pools(engine);
  tn_engine_leave(engine);
  return TENON_OK;
}

TenonStatus tenon_engine_profile(TenonEngine *handle, uint64_t *nanoseconds, size_t count) {
  Engine *engine;
  TenonStatus status = tn_engine_take(handle, &engine);
  if (status != TENON_OK) return status;
  const Description *about = &engine->bundle->about;
  if (about->timed_calls == 0)
    status = tn_fail(TENON_UNSUPPORTED, "the kernels of %s cannot be timed: compile it again with --profile", about->name);
  else if (engine->binding != 0)
    status = tn_fail(TENON_WRONG_STATE, "%s: only the first binding can be profiled: select it", about->name);
  else if (nanoseconds == NULL || count != (size_t)about->timed_calls)
    status = tn_fail(nanoseconds == NULL ? TENON_INVALID_ARGUMENT : TENON_WRONG_SIZE,
                     "%s has %d steps and the array %zu", about->name, about->timed_calls, nanoseconds ? count : 0);
  else
    status = tn_run_profiled(engine, nanoseconds);
  tn_engine_leave(engine);
  return status;
}
