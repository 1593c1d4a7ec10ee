/* The engine that a handle belongs to, and who may use it. */

#include "engine.h"
#include "errors.h"
#include "handle.h"

static const HandleKind engine_kind = {"engine", "destroyed"};

TenonEngine *tn_engine_handle(Engine *engine) { return tn_handle_new(&engine_kind, engine); }

Engine *tn_engine_of(const TenonEngine *handle) { return tn_handle_object(&engine_kind, handle); }

const Binding *tn_engine_binding(const Engine *engine) { return &engine->bundle->about.bindings[engine->binding]; }

/* The callback of an asynchronous run may use its engine. */
int tn_engine_is_busy(const Engine *engine) {
  return engine->running || (engine->active && engine->worker != tn_thread_self());
}

static TenonStatus enter(const TenonEngine *handle, Engine **result, int take) {
  Engine *engine = tn_engine_of(handle);
  if (engine == NULL) return TENON_INVALID_HANDLE;
  tn_lock(&engine->monitor);
  const int busy = tn_engine_is_busy(engine);
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
