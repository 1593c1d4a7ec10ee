/* An engine: a bundle with memory of its own, to run it. */

#ifndef TENON_ENGINE_H
#define TENON_ENGINE_H

#include "internal.h"
#include "threads.h"

/* Memory for intermediate results, which engines can share. */
typedef struct {
  int references, taken;
  uint8_t *memory; /* NULL: it is to be taken */
  uint8_t *home;   /* behind the tensors of the engine that made this, while that lives; or NULL */
  size_t home_size;
  size_t size, wanted, alignment;
  Monitor monitor;
} Activations;

Activations *tn_activations_new(void);
void tn_activations_want(Activations *activations, size_t size, size_t alignment);
uint8_t *tn_activations_take(Activations *activations); /* waits; NULL if there is no memory */
void tn_activations_leave(Activations *activations);
void tn_activations_settle(Activations *activations, uint8_t *home, size_t size); /* NULL: the home ends */
void tn_activations_drop(Activations *activations); /* the memory; it is taken again when needed */
void tn_activations_retain(Activations *activations);
void tn_activations_release(Activations *activations);

typedef struct DeviceParts DeviceParts;

typedef struct {
  Bundle *bundle;     /* what runs: `opened`, or one of its model for other shapes; changes only while `running` */
  Bundle *opened;     /* of the handle that the engine was created from */
  DeviceParts *parts; /* of the network, that a device runs; or NULL */
  TenonEngine *handle;
  uint8_t *tensors;
  Activations *activations;
  int is_home; /* of the activations */
  const void **bound_inputs;
  void **bound_outputs;
  int binding, threads, is_pinned;
  Processors processors;
  TenonThreadPool **pools; /* of each binding, and last the one for profiling; NULL before their first run */
  long process;            /* in which the pools are */
  Monitor monitor;         /* of what follows */
  int running;             /* a call uses the engine's memory */
  int active;              /* from the start of an asynchronous run to the end of its callback */
  int queued, stopping, has_thread, has_result;
  uintptr_t worker; /* the thread of asynchronous runs */
  Thread thread;
  TenonDone *done;
  void *context;
  TenonStatus result;
  char error[256];
} Engine;

/* The engine of a handle, if no run uses it; else the status. */
TenonStatus tn_engine_enter(const TenonEngine *handle, Engine **engine);
/* The same, and no other call may use it until tn_engine_leave. */
TenonStatus tn_engine_take(const TenonEngine *handle, Engine **engine);
void tn_engine_leave(Engine *engine);

/* The memory for inputs and outputs of the bundle, with room for intermediate results, what is as long as its lists, and
   the parts that a device runs. */
TenonStatus tn_take_buffers(Engine *engine, size_t activations);
void tn_release_buffers(Engine *engine);

const Binding *tn_engine_binding(const Engine *engine);
TenonStatus tn_run(Engine *engine);
TenonStatus tn_run_profiled(Engine *engine, uint64_t *nanoseconds);
void tn_stop_pools(Engine *engine);

/* ---- parts that a device runs */
DeviceParts *tn_device_parts(const Bundle *bundle); /* NULL if there is no memory */
void tn_begin_parts(Engine *engine);                /* before a run */
TenonStatus tn_parts_status(const Engine *engine);  /* after it */
void tn_end_parts(Engine *engine);

int tn_stop_worker(Engine *engine); /* waits for runs; 0 in a callback, which cannot wait for itself */

#endif
