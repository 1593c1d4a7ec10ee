/* Runs of an engine on a thread of its own. */

#include "engine.h"
#include "errors.h"

#include <stdio.h>

static void run_queued(Engine *engine) {
  TenonDone *done = engine->done;
  void *context = engine->context;
  engine->queued = 0;
  engine->running = 1;
  tn_unlock(&engine->monitor);
  const TenonStatus status = tn_run(engine, NULL);
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
  if (tn_engine_is_busy(engine) || engine->queued) return tn_fail(TENON_BUSY, "the engine of %s runs: wait for it", name);
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
  Engine *engine = tn_engine_of(handle);
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
  Engine *engine = tn_engine_of(handle);
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
