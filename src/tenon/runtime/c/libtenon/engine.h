/* An engine: a bundle with memory of its own, to run it. */

#ifndef TENON_ENGINE_H
#define TENON_ENGINE_H

#include "activations.h"
#include "bundle.h"
#include "device_parts.h"
#include "threads.h"

typedef struct {
  int is_given;
  int64_t extents[TENON_MAX_RANK];
} GivenShape;

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
  GivenShape *given_shapes; /* of each input, by tenon_engine_set_input_shape */
  int binding, threads, is_pinned;
  Processors processors;
  TenonThreadPool **pools; /* of each binding, and last the one for profiling; NULL before their first run */
  long process;            /* in which the pools are */
  void **queues;           /* the network of each binding on a device; NULL before its first run */
  char *gpu_options;       /* lines for these, or NULL */
  long queue_process;      /* in which they are */
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

/* ---- which engine a handle is of, and who may use it (exclusion.c) */
TenonEngine *tn_engine_handle(Engine *engine);       /* a new one; NULL if there is no memory */
Engine *tn_engine_of(const TenonEngine *handle);     /* NULL, and an error text, if it is not valid */
int tn_engine_is_busy(const Engine *engine);         /* with the monitor locked */
/* The engine of a handle, if no run uses it; else the status. */
TenonStatus tn_engine_enter(const TenonEngine *handle, Engine **engine);
/* The same, and no other call may use it until tn_engine_leave. */
TenonStatus tn_engine_take(const TenonEngine *handle, Engine **engine);
void tn_engine_leave(Engine *engine);
const Binding *tn_engine_binding(const Engine *engine);

/* ---- memory (engine.c) */
/* The memory for inputs and outputs of the bundle, with room for intermediate results, what is as long as its lists, and
   the parts that a device runs. */
TenonStatus tn_take_buffers(Engine *engine, size_t activations);
void tn_release_buffers(Engine *engine);

/* ---- states (states.c) */
void tn_reset(Engine *engine); /* gives those of the selected binding their initial content */
int tn_same_states(const Binding *a, const Binding *b); /* whether both have the same ones, at the same places */

/* ---- sizes that a run chooses (sizes.c) */
void tn_set_largest_sizes(Engine *engine); /* as when the engine is created */
void tn_true_shape(const Engine *engine, const Port *port, int64_t shape[TENON_MAX_RANK]);
uint64_t tn_true_bytes(const Engine *engine, const Port *port);
/* Copies between a tensor and an array of its true shape, without gaps. */
void tn_copy_tensor(const Engine *engine, const Port *port, uint8_t *packed, int is_output);
int tn_takes_shapes(const Binding *binding, const int64_t *shapes, size_t count); /* of all inputs, one after another */
TenonStatus tn_set_shapes(Engine *engine, const int64_t *shapes);
TenonStatus tn_check_sizes(const Engine *engine);        /* fails with the first size that is out of its range */
TenonStatus tn_check_given_shapes(const Engine *engine); /* fails where inputs were given different sizes of one name */

/* ---- runs (run.c, run_async.c) */
TenonStatus tn_run(Engine *engine, uint64_t *nanoseconds); /* with `nanoseconds`, which is NULL otherwise, profiled */
void tn_stop_pools(Engine *engine);
/* ---- on a GPU or another device (queues.c) */
TenonStatus tn_queue_prepare(Engine *engine); /* creates the network of the selected binding there, unless it is there */
TenonStatus tn_queue_run(Engine *engine, uint64_t *nanoseconds); /* as tn_run */
int tn_queue_steps(Engine *engine); /* of the first binding, that a device can time */
void tn_stop_queues(Engine *engine);

int tn_stop_worker(Engine *engine); /* waits for runs; 0 in a callback, which cannot wait for itself */

#endif
