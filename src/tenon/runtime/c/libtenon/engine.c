/* Engines: create and end them, their memory and their profiles. */

#include "engine.h"
#include "errors.h"
#include "handle.h"

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
  engine->given_shapes = calloc((size_t)first->input_count + 1, sizeof *engine->given_shapes);
  engine->pools = calloc((size_t)about->binding_count + 1, sizeof *engine->pools);
  engine->queues = calloc((size_t)about->binding_count + 1, sizeof *engine->queues);
  if (engine->tensors == NULL || engine->bound_inputs == NULL || engine->bound_outputs == NULL || engine->pools == NULL ||
      engine->queues == NULL || engine->given_shapes == NULL)
    return tn_fail(TENON_OUT_OF_MEMORY, "%s: no memory for an engine", about->name);
  if (engine->bundle->device_count > 0 && (engine->parts = tn_device_parts(engine->bundle, engine->gpu_options)) == NULL)
    return tn_fail(TENON_OUT_OF_MEMORY, "%s: no memory for an engine", about->name);
  return TENON_OK;
}

void tn_release_buffers(Engine *engine) {
  if (engine->is_home) tn_activations_settle(engine->activations, NULL, 0);
  engine->is_home = 0;
  tn_end_parts(engine->parts);
  tn_aligned_release(engine->tensors);
  free(engine->bound_inputs);
  free(engine->bound_outputs);
  free(engine->given_shapes);
  free(engine->pools);
  free(engine->queues);
}

static TenonStatus take_memory(Engine *engine, const TenonEngineOptions *options) {
  const Description *about = &engine->bundle->about;
  Engine *other = NULL;
  if (options->share_activations != NULL) {
    if ((other = tn_engine_of(options->share_activations)) == NULL) return TENON_INVALID_HANDLE;
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

static TenonStatus keep_gpu_options(Engine *engine, const char *lines) {
  if (lines == NULL) return TENON_OK;
  const size_t bytes = strlen(lines) + 1;
  engine->gpu_options = malloc(bytes);
  if (engine->gpu_options == NULL) return tn_fail(TENON_OUT_OF_MEMORY, "no memory for an engine");
  memcpy(engine->gpu_options, lines, bytes);
  return TENON_OK;
}

static TenonStatus set_up(Engine *engine, const TenonEngineOptions *options) {
  const Binding *binding;
  TenonStatus status = choose_threads(engine, options);
  if (status == TENON_OK) status = choose_processors(engine, options);
  if (status == TENON_OK) status = tn_find_binding(&engine->bundle->about, options->binding, &binding);
  if (status == TENON_OK) status = keep_gpu_options(engine, options->gpu);
  if (status == TENON_OK) status = take_memory(engine, options);
  engine->binding = options->binding;
  if (status == TENON_OK) tn_reset(engine);
  if (status == TENON_OK) tn_set_largest_sizes(engine);
  return status;
}

static void end(Engine *engine) {
  if (engine->pools != NULL) tn_stop_pools(engine);
  tn_stop_queues(engine);
  tn_release_buffers(engine);
  free(engine->gpu_options);
  tn_activations_release(engine->activations);
  tn_bundle_release(engine->bundle);
  tn_bundle_release(engine->opened);
  free(engine);
}

TenonStatus tenon_engine_create(TenonBundle *handle, const TenonEngineOptions *given, TenonEngine **result) {
  TenonEngineOptions options;
  Bundle *bundle = tn_bundle_of(handle);
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
  if (status == TENON_OK && (engine->handle = tn_engine_handle(engine)) == NULL)
    status = tn_fail(TENON_OUT_OF_MEMORY, "no room for one more engine");
  if (status == TENON_OK) *result = engine->handle;
  else end(engine);
  return status;
}

TenonStatus tenon_engine_destroy(TenonEngine *handle) {
  Engine *engine = tn_engine_of(handle);
  if (engine == NULL) return TENON_INVALID_HANDLE;
  if (!tn_stop_worker(engine))
    return tn_fail(TENON_BUSY, "%s: a callback cannot destroy its engine", engine->opened->about.name);
  tn_handle_end(handle);
  end(engine);
  return TENON_OK;
}

/* -------------------------------------------------------------------------------------------------- memory, profiles */

TenonStatus tenon_engine_release_memory(TenonEngine *handle) {
  Engine *engine;
  const TenonStatus status = tn_engine_take(handle, &engine);
  if (status != TENON_OK) return status;
  tn_activations_drop(engine->activations);
  tn_stop_pools(engine);
  tn_stop_queues(engine);
  tn_engine_leave(engine);
  return TENON_OK;
}

TenonStatus tenon_engine_profile(TenonEngine *handle, uint64_t *nanoseconds, size_t count) {
  Engine *engine;
  TenonStatus status = tn_engine_take(handle, &engine);
  if (status != TENON_OK) return status;
  const Description *about = &engine->bundle->about;
  const int calls = engine->bundle->queues != NULL ? tn_queue_steps(engine) : about->timed_calls;
  if (calls == 0)
    status = tn_fail(TENON_UNSUPPORTED, "the kernels of %s cannot be timed: compile it again with --profile", about->name);
  else if (engine->binding != 0)
    status = tn_fail(TENON_WRONG_STATE, "%s: only the first binding can be profiled: select it", about->name);
  else if (nanoseconds == NULL || count != (size_t)calls)
    status = tn_fail(nanoseconds == NULL ? TENON_INVALID_ARGUMENT : TENON_WRONG_SIZE,
                     "%s has %d steps and the array %zu", about->name, calls, nanoseconds ? count : 0);
  else
    status = tn_run(engine, nanoseconds);
  tn_engine_leave(engine);
  return status;
}
