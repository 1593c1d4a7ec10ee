/* Runs of an engine on one thread or several, with timestamps if they are asked for. */

#include "engine.h"
#include "errors.h"

#include <string.h>

/* --------------------------------------------------------------------------------------------------------- threads */

#ifdef TENON_NO_THREAD_POOL
static TenonThreadPool *pool_of(Engine *engine, int number, PhaseFunction *phase, NextFunction *next) {
  (void)engine, (void)number, (void)phase, (void)next;
  return NULL;
}
void tn_stop_pools(Engine *engine) { (void)engine; }
#else
/* A forked process has none of the threads: it starts its own. */
static TenonThreadPool *pool_of(Engine *engine, int number, PhaseFunction *phase, NextFunction *next) {
  const int count = engine->bundle->about.binding_count + 1;
  if (engine->process != tn_process()) {
    memset(engine->pools, 0, (size_t)count * sizeof *engine->pools);
    engine->process = tn_process();
  }
  if (engine->pools[number] == NULL) engine->pools[number] = tenon_thread_pool_start(phase, next, engine->threads);
  if (engine->pools[number] == NULL)
    tn_fail(TENON_SYSTEM, "%s: the system has no room for %d more threads", engine->bundle->about.name, engine->threads - 1);
  return engine->pools[number];
}

void tn_stop_pools(Engine *engine) {
  for (int i = 0; i <= engine->bundle->about.binding_count; i++) {
    if (engine->pools[i] != NULL && engine->process == tn_process()) tenon_thread_pool_stop(engine->pools[i]);
    engine->pools[i] = NULL;
  }
}
#endif

enum { TOO_MANY_ITERATIONS = 1, SIZE_OUT_OF_RANGE = 2 }; /* what entry points return */

/* Reports the size of the inputs that is out of its range, if one is. */
static TenonStatus wrong_size(const Engine *engine, const Binding *binding) {
  const TenonStatus status = tn_check_sizes(engine);
  if (status != TENON_OK) return status;
  return tn_fail(TENON_RUN_FAILED, "%s: for these inputs a size is not in the range that it was compiled for (--max)",
                 binding->entry);
}

static TenonStatus ended(const Engine *engine, const Binding *binding, int status) {
  if (status == TOO_MANY_ITERATIONS)
    return tn_fail(TENON_RUN_FAILED, "%s: for these inputs a loop would run more often than it was compiled for",
                   binding->entry);
  if (status == SIZE_OUT_OF_RANGE) return wrong_size(engine, binding);
  return status == 0 ? TENON_OK : tn_fail(TENON_RUN_FAILED, "%s returned %d", binding->entry, status);
}

static TenonStatus execute(Engine *engine, uint8_t *activations) {
  const Bundle *bundle = engine->bundle;
  const Binding *binding = tn_engine_binding(engine);
  if (engine->threads == 1) {
    return ended(engine, binding, bundle->run[engine->binding](bundle->weights, engine->tensors, activations));
  }
  const int number = engine->binding;
  TenonThreadPool *pool = pool_of(engine, number, bundle->phase[number], bundle->next[number]);
  if (pool == NULL) return TENON_SYSTEM;
#ifndef TENON_NO_THREAD_POOL
  return ended(engine, binding, tenon_thread_pool_run(pool, bundle->weights, engine->tensors, activations));
#else
  return TENON_OK;
#endif
}

/* ------------------------------------------------------------------------------------------------------- profiling */

typedef struct {
  uint64_t *spent, last;
  int step, count; /* the step that runs, -1: none */
} Stamps;

static void stamp(void *context, int step) {
  Stamps *stamps = context;
  const uint64_t now = tn_clock();
  if (stamps->step >= 0 && stamps->step < stamps->count) stamps->spent[stamps->step] += now - stamps->last;
  stamps->last = now;
  stamps->step = step;
}

static TenonStatus execute_profiled(Engine *engine, uint8_t *activations, uint64_t *nanoseconds) {
  const Bundle *bundle = engine->bundle;
  const int calls = bundle->about.timed_calls;
  Stamps stamps = {nanoseconds, 0, -1, calls};
  memset(nanoseconds, 0, (size_t)calls * sizeof *nanoseconds);
  if (engine->threads == 1) {
    int step = -1;
    do {
      step = bundle->profile_next(bundle->weights, engine->tensors, activations, step);
      stamp(&stamps, step);
      if (step >= 0) bundle->profile(bundle->weights, engine->tensors, activations, step, 0, 1, 0);
    } while (step >= 0);
    return ended(engine, bundle->about.bindings, -1 - step);
  }
  TenonThreadPool *pool = pool_of(engine, bundle->about.binding_count, bundle->profile, bundle->profile_next);
  if (pool == NULL) return TENON_SYSTEM;
#ifndef TENON_NO_THREAD_POOL
  tenon_thread_pool_watch(pool, stamp, &stamps);
  const int status = tenon_thread_pool_run(pool, bundle->weights, engine->tensors, activations);
  tenon_thread_pool_watch(pool, NULL, NULL);
  return ended(engine, bundle->about.bindings, status);
#else
  return TENON_OK;
#endif
}

/* ------------------------------------------------------------------------------------------------------------ runs */

static void copy_inputs(const Engine *engine) {
  const Binding *binding = tn_engine_binding(engine);
  for (int i = 0; i < binding->input_count; i++) {
    const Port *port = &binding->inputs[i];
    if (engine->bound_inputs[i] != NULL)
      memcpy(engine->tensors + port->offset, engine->bound_inputs[i], (size_t)port->tensor.bytes);
  }
}

static void copy_outputs(const Engine *engine) {
  const Binding *binding = tn_engine_binding(engine);
  for (int i = 0; i < binding->output_count; i++) {
    const Port *port = &binding->outputs[i];
    if (engine->bound_outputs[i] != NULL)
      memcpy(engine->bound_outputs[i], engine->tensors + port->offset, (size_t)port->tensor.bytes);
  }
}

static TenonStatus run_on_device(Engine *engine, uint64_t *nanoseconds) {
  copy_inputs(engine);
  TenonStatus status = tn_check_sizes(engine);
  if (status == TENON_OK) status = tn_queue_run(engine, nanoseconds);
  if (status == TENON_OK) copy_outputs(engine);
  return status;
}

TenonStatus tn_run(Engine *engine, uint64_t *nanoseconds) {
  Processors before;
  const TenonStatus shapes = tn_check_given_shapes(engine);
  if (shapes != TENON_OK) return shapes;
  if (engine->bundle->queues != NULL) return run_on_device(engine, nanoseconds);
  uint8_t *activations = tn_activations_take(engine->activations);
  if (activations == NULL)
    return tn_fail(TENON_OUT_OF_MEMORY, "%s: no memory for intermediate results", engine->bundle->about.name);
  copy_inputs(engine);
  if (engine->parts != NULL) tn_begin_parts(engine->parts, engine->binding, engine->tensors);
  const int moved = engine->is_pinned && tn_own_processors(&before) && tn_pin(&engine->processors);
  TenonStatus status =
      nanoseconds != NULL ? execute_profiled(engine, activations, nanoseconds) : execute(engine, activations);
  if (moved) tn_pin(&before);
  if (status == TENON_OK && engine->parts != NULL) status = tn_parts_status(engine->parts);
  if (status == TENON_OK) copy_outputs(engine);
  tn_activations_leave(engine->activations);
  return status;
}

TenonStatus tenon_engine_run(TenonEngine *handle) {
  Engine *engine;
  TenonStatus status = tn_engine_take(handle, &engine);
  if (status != TENON_OK) return status;
  status = tn_run(engine, NULL);
  tn_engine_leave(engine);
  return status;
}
