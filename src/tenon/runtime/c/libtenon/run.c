/* Runs of an engine: on one thread or several, with timestamps, or on a thread of its own. */

#include "engine.h"

#include <stdio.h>
#include <string.h>

const Binding *tn_engine_binding(const Engine *engine) { return &engine->bundle->about.bindings[engine->binding]; }

/* ------------------------------------------------------------------------------------------------------- exclusion */

/* The callback of an asynchronous run may use its engine. */
static int is_busy(const Engine *engine) {
  return engine->running || (engine->active && engine->worker != tn_thread_self());
}

static TenonStatus enter(const TenonEngine *handle, Engine **result, int take) {
  Engine *engine = tn_handle_object(ENGINE_HANDLE, handle);
  if (engine == NULL) return TENON_INVALID_HANDLE;
  tn_lock(&engine->monitor);
  const int busy = is_busy(engine);
  if (!busy && take) engine->running = 1;
  tn_unlock(&engine->monitor);
  if (busy) return tn_fail(TENON_BUSY, "the engine of %s runs: wait for it", engine->opened->about.name);
  *result = engine;
  return TENON_OK;
}

TenonStatus tn_engine_enter(const TenonEngine *handle, Engine **engine) { return enter(handle, engine, 0); }

TenonStatus tn_engine_take(const TenonEngine *handle, Engine **engine) { return enter(handle, engine, 1); }

void tn_engine_leave(Engine *engine) {
  tn_lock(&engine->monitor);
  engine->running = 0;
  tn_wake_all(&engine->monitor);
  tn_unlock(&engine->monitor);
}

/* --------------------------------------------------------------------------------------------------------- threads */

#ifdef TENON_NO_THREAD_POOL
static TenonThreadPool *pool_of(Engine *engine, int number, PhaseFunction *phase, int phases) {
  (void)engine, (void)number, (void)phase, (void)phases;
  return NULL;
}
void tn_stop_pools(Engine *engine) { (void)engine; }
#else
/* A forked process has none of the threads: it starts its own. */
static TenonThreadPool *pool_of(Engine *engine, int number, PhaseFunction *phase, int phases) {
  const int count = engine->bundle->about.binding_count + 1;
  if (engine->process != tn_process()) {
    memset(engine->pools, 0, (size_t)count * sizeof *engine->pools);
    engine->process = tn_process();
  }
  if (engine->pools[number] == NULL) engine->pools[number] = tenon_thread_pool_start(phase, phases, engine->threads);
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

static TenonStatus execute(Engine *engine, uint8_t *activations) {
  const Bundle *bundle = engine->bundle;
  const Binding *binding = tn_engine_binding(engine);
  if (engine->threads == 1) {
    const int status = bundle->run[engine->binding](bundle->weights, engine->tensors, activations);
    return status == 0 ? TENON_OK : tn_fail(TENON_RUN_FAILED, "%s returned %d", binding->entry, status);
  }
  TenonThreadPool *pool = pool_of(engine, engine->binding, bundle->phase[engine->binding], binding->phases);
  if (pool == NULL) return TENON_SYSTEM;
#ifndef TENON_NO_THREAD_POOL
  tenon_thread_pool_run(pool, bundle->weights, engine->tensors, activations);
#endif
  return TENON_OK;
}

/* ------------------------------------------------------------------------------------------------------- profiling */

typedef struct {
  uint64_t *next, last, *end;
} Stamps;

static void stamp(void *context) {
  Stamps *stamps = context;
  const uint64_t now = tn_clock();
  if (stamps->last != 0 && stamps->next < stamps->end) *stamps->next++ = now - stamps->last;
  stamps->last = now;
}

static TenonStatus execute_profiled(Engine *engine, uint8_t *activations, uint64_t *nanoseconds) {
  const Bundle *bundle = engine->bundle;
  const int calls = bundle->about.timed_calls;
  Stamps stamps = {nanoseconds, 0, nanoseconds + calls};
  if (engine->threads == 1) {
    stamp(&stamps);
    for (int i = 0; i < calls; i++) {
      bundle->profile(bundle->weights, engine->tensors, activations, i, 0, 1);
      stamp(&stamps);
    }
    return TENON_OK;
  }
  TenonThreadPool *pool = pool_of(engine, bundle->about.binding_count, bundle->profile, calls);
  if (pool == NULL) return TENON_SYSTEM;
#ifndef TENON_NO_THREAD_POOL
  tenon_thread_pool_watch(pool, stamp, &stamps);
  tenon_thread_pool_run(pool, bundle->weights, engine->tensors, activations);
  tenon_thread_pool_watch(pool, NULL, NULL);
#endif
  return TENON_OK;
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

static TenonStatus run(Engine *engine, uint64_t *nanoseconds) {
  Processors before;
  uint8_t *activations = tn_activations_take(engine->activations);
  if (activations == NULL)
    return tn_fail(TENON_OUT_OF_MEMORY, "%s: no memory for intermediate results", engine->bundle->about.name);
  copy_inputs(engine);
  if (engine->parts != NULL) tn_begin_parts(engine);
  const int moved = engine->is_pinned && tn_own_processors(&before) && tn_pin(&engine->processors);
  TenonStatus status =
      nanoseconds != NULL ? execute_profiled(engine, activations, nanoseconds) : execute(engine, activations);
  if (moved) tn_pin(&before);
  if (status == TENON_OK && engine->parts != NULL) status = tn_parts_status(engine);
  if (status == TENON_OK) copy_outputs(engine);
  tn_activations_leave(engine->activations);
  return status;
}

TenonStatus tn_run(Engine *engine) { return run(engine, NULL); }

TenonStatus tn_run_profiled(Engine *engine, uint64_t *nanoseconds) { return run(engine, nanoseconds); }

TenonStatus tenon_engine_run(TenonEngine *handle) {
  Engine *engine;
  TenonStatus status = tn_engine_take(handle, &engine);
  if (status != TENON_OK) return status;
  status = tn_run(engine);
  tn_engine_leave(engine);
  return status;
}

/* --------------------------------------------------------------------------------------------------- asynchronously */

static void run_queued(Engine *engine) {
  TenonDone *done = engine->done;
  void *context = engine->context;
  engine->queued = 0;
  engine->running = 1;
  tn_unlock(&engine->monitor);
  const TenonStatus status = tn_run(engine);
  tn_lock(&engine->monitor);
  engine->running = 0;
  engine->result = status;
  if (status != TENON_OK) snprintf(engine->error, sizeof engine->error, "%s", tenon_last_error());
  tn_unlock(&engine->monitor);
  if (done != NULL) done(engine->handle, status, context);
  tn_lock(&engine->monitor);
  if (engine->queued) return; /* by the callback */
  engine->active = 0;
  engine->has_result = 1;
  tn_wake_all(&engine->monitor);
}

static void work(void *argument) {
  Engine *engine = argument;
  tn_lock(&engine->monitor);
  engine->worker = tn_thread_self();
  for (;;) {
    if (engine->queued) run_queued(engine);
    else if (engine->stopping) break;
    else tn_wait(&engine->monitor, -1);
  }
  tn_unlock(&engine->monitor);
}

static TenonStatus queue(Engine *engine, TenonDone *done, void *context) {
  const char *name = engine->opened->about.name;
  if (engine->stopping) return tn_fail(TENON_WRONG_STATE, "the engine of %s is being destroyed", name);
  if (is_busy(engine) || engine->queued) return tn_fail(TENON_BUSY, "the engine of %s runs: wait for it", name);
  if (!engine->has_thread) {
    const TenonStatus status = tn_thread_start(&engine->thread, work, engine);
    if (status != TENON_OK) return status;
    engine->has_thread = 1;
  }
  engine->queued = engine->active = 1;
  engine->has_result = 0;
  engine->done = done;
  engine->context = context;
  tn_wake_all(&engine->monitor);
  return TENON_OK;
}

TenonStatus tenon_engine_run_async(TenonEngine *handle, TenonDone *done, void *context) {
  Engine *engine = tn_handle_object(ENGINE_HANDLE, handle);
  if (engine == NULL) return TENON_INVALID_HANDLE;
  tn_lock(&engine->monitor);
  const TenonStatus status = queue(engine, done, context);
  tn_unlock(&engine->monitor);
  return status;
}

/* With the monitor locked. */
static TenonStatus wait_for_result(Engine *engine, int64_t milliseconds) {
  const char *name = engine->opened->about.name;
  const uint64_t begin = tn_clock();
  if (engine->active && engine->worker == tn_thread_self())
    return tn_fail(TENON_WRONG_STATE, "%s: a callback cannot wait for its own run", name);
  if (!engine->active && !engine->has_result) return tn_fail(TENON_WRONG_STATE, "%s: no run was started", name);
  while (engine->active) {
    const int64_t passed = (int64_t)((tn_clock() - begin) / 1000000);
    if (milliseconds >= 0 && passed >= milliseconds)
      return tn_fail(TENON_TIMEOUT, "%s still runs after %lld ms", name, (long long)milliseconds);
    tn_wait(&engine->monitor, milliseconds < 0 ? -1 : milliseconds - passed);
  }
  engine->has_result = 0;
  return engine->result == TENON_OK ? TENON_OK : tn_fail(engine->result, "%s", engine->error);
}

TenonStatus tenon_engine_wait(TenonEngine *handle, int64_t milliseconds) {
  Engine *engine = tn_handle_object(ENGINE_HANDLE, handle);
  if (engine == NULL) return TENON_INVALID_HANDLE;
  tn_lock(&engine->monitor);
  const TenonStatus status = wait_for_result(engine, milliseconds);
  tn_unlock(&engine->monitor);
  return status;
}

int tn_stop_worker(Engine *engine) {
  tn_lock(&engine->monitor);
  if (engine->active && engine->worker == tn_thread_self()) {
    tn_unlock(&engine->monitor);
    return 0;
  }
  engine->stopping = 1;
  tn_wake_all(&engine->monitor);
  while (engine->active || engine->running) tn_wait(&engine->monitor, -1);
  tn_unlock(&engine->monitor);
  if (engine->has_thread) tn_thread_join(&engine->thread);
  engine->has_thread = 0;
  return 1;
}
