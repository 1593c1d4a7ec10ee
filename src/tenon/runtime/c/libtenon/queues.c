/* Runs of networks on a GPU or another device, which their bundle's library finds and uses. */

#include "engine.h"
#include "errors.h"

#include "tenon_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Statuses of the library that no driver has (device_network.c). */
enum { NO_DEVICE = -1001, NO_DRIVER = -1002, NO_MEMORY = -1003, UNFIT = -1004, FORKED = -1005 };
enum { WRONG_SIZE = -1007, TOO_MANY_ITERATIONS = -1008 }; /* of the inputs: the device works */

/* In the order of QueueFunctions. */
static const char ends[QUEUE_FUNCTIONS][24] = {"_create_with_options", "_run", "_timed_run", "_destroy", "_device", "_message"};

TenonStatus tn_attach_queues(Bundle *bundle) {
  const Description *about = &bundle->about;
  QueueFunctions *queues = tn_pool_take(&bundle->pool, (size_t)about->binding_count * sizeof *queues);
  if (queues == NULL) return tn_fail(TENON_OUT_OF_MEMORY, "%s: no memory", about->name);
  for (int i = 0; i < about->binding_count * QUEUE_FUNCTIONS; i++) {
    char name[256];
    const char *entry = about->bindings[i / QUEUE_FUNCTIONS].entry, *end = ends[i % QUEUE_FUNCTIONS];
    snprintf(name, sizeof name, "%s%s", entry, end);
    void *address = tn_library_symbol(&bundle->library, name);
    if (address == NULL && i == 0) return TENON_OK;
    if (address == NULL) return tn_fail(TENON_DAMAGED, "%s is missing: compile the model again", name);
    memcpy((char *)&queues[i / QUEUE_FUNCTIONS] + (size_t)(i % QUEUE_FUNCTIONS) * sizeof address, &address, sizeof address);
  }
  bundle->queues = queues;
  return TENON_OK;
}

static TenonStatus failed(const Engine *engine, const QueueFunctions *queue, int status, const char *doing) {
  TenonStatus kind = status == NO_MEMORY ? TENON_OUT_OF_MEMORY : TENON_RUN_FAILED;
  if (status == NO_DEVICE || status == NO_DRIVER || status == UNFIT || status == FORKED) kind = TENON_UNSUPPORTED;
  return tn_fail(kind, "%s %s: %s", tn_engine_binding(engine)->entry, doing, queue->message());
}

/* A forked process has nothing on the device: it could not give it back, either. */
static void forget_parent(Engine *engine) {
  if (engine->queue_process == tn_process()) return;
  memset(engine->queues, 0, (size_t)engine->bundle->about.binding_count * sizeof *engine->queues);
  engine->queue_process = tn_process();
}

TenonStatus tn_queue_prepare(Engine *engine) {
  const int number = engine->binding;
  const QueueFunctions *queue = &engine->bundle->queues[number];
  int status = 0;
  forget_parent(engine);
  if (engine->queues[number] == NULL)
    engine->queues[number] = queue->create(engine->bundle->weights, engine->gpu_options, &status);
  return engine->queues[number] != NULL ? TENON_OK : failed(engine, queue, status, "cannot run");
}

int tn_queue_steps(Engine *engine) {
  Bundle *bundle = engine->bundle;
  tn_lock(&bundle->monitor);
  const TenonStatus status = tn_read_steps(&bundle->pool, bundle->about.name, &bundle->about);
  tn_unlock(&bundle->monitor);
  return status == TENON_OK ? bundle->about.step_count : 0;
}

/* The times of the copies of inputs and outputs stand before those of the steps. */
static int timed(const QueueFunctions *queue, Engine *engine, uint64_t *nanoseconds) {
  const size_t steps = (size_t)engine->bundle->about.step_count;
  uint64_t *all = calloc(steps + 2, sizeof *all);
  if (all == NULL) return NO_MEMORY;
  const int status = queue->timed_run(engine->tensors, engine->queues[engine->binding], all);
  memcpy(nanoseconds, all + 2, steps * sizeof *all);
  free(all);
  return status;
}

/* A device that failed may be lost: the next run creates the network again.  A run that its inputs end says so. */
TenonStatus tn_queue_run(Engine *engine, uint64_t *nanoseconds) {
  const int number = engine->binding;
  const QueueFunctions *queue = &engine->bundle->queues[number];
  TenonStatus result = tn_queue_prepare(engine);
  if (result != TENON_OK) return result;
  const int status =
      nanoseconds != NULL ? timed(queue, engine, nanoseconds) : queue->run(engine->tensors, engine->queues[number]);
  if (status == 0) return TENON_OK;
  if (status == WRONG_SIZE || status == TOO_MANY_ITERATIONS)
    return tn_fail(TENON_RUN_FAILED, "%s: %s", tn_engine_binding(engine)->entry, queue->message());
  result = failed(engine, queue, status, "failed on the device");
  queue->destroy(engine->queues[number]);
  engine->queues[number] = NULL;
  return result;
}

void tn_stop_queues(Engine *engine) {
  if (engine->queues == NULL) return;
  forget_parent(engine);
  for (int i = 0; i < engine->bundle->about.binding_count; i++) {
    if (engine->queues[i] != NULL) engine->bundle->queues[i].destroy(engine->queues[i]);
    engine->queues[i] = NULL;
  }
}

/* ---------------------------------------------------------------------------------------------------------- the API */

/* The text behind a word of the lines "word: text". */
static int word(const char *lines, const char *name, const char **text) {
  const char *found = strstr(lines, name);
  *text = found != NULL ? found + strlen(name) : "";
  return (int)strcspn(*text, "\n");
}

static const char *keep_text(Bundle *bundle, const char *text) {
  tn_lock(&bundle->monitor);
  if (bundle->device_text == NULL) bundle->device_text = tn_pool_text(&bundle->pool, text, strlen(text));
  tn_unlock(&bundle->monitor);
  return bundle->device_text != NULL ? bundle->device_text : "";
}

static const char *names_of_devices(Bundle *bundle) {
  char text[800] = "";
  size_t used = 0;
  for (int i = 0; i < bundle->device_count && used < sizeof text; i++)
    used += (size_t)snprintf(text + used, sizeof text - used, "%s%s", i > 0 ? ", " : "", bundle->devices[i].device->name);
  return keep_text(bundle, text);
}

const char *tenon_bundle_device(const TenonBundle *handle) {
  Bundle *bundle = tn_bundle_of(handle);
  const char *name, *version, *driver;
  char text[800];
  if (bundle == NULL || (bundle->queues == NULL && bundle->device_count == 0)) return NULL;
  if (bundle->queues == NULL) return names_of_devices(bundle);
  const char *lines = bundle->queues->device();
  if (*lines == 0) {
    tn_fail(TENON_UNSUPPORTED, "%s cannot run: %s", bundle->about.name, bundle->queues->message());
    return "";
  }
  const int a = word(lines, "name: ", &name), b = word(lines, "version: ", &version), c = word(lines, "driver: ", &driver);
  snprintf(text, sizeof text, "%.*s, %.*s, driver %.*s", a, name, b, version, c, driver);
  return keep_text(bundle, text);
}

TenonStatus tenon_engine_prepare(TenonEngine *handle) {
  Engine *engine;
  TenonStatus status = tn_engine_take(handle, &engine);
  if (status != TENON_OK) return status;
  if (engine->bundle->queues != NULL) status = tn_queue_prepare(engine);
  tn_engine_leave(engine);
  return status;
}
