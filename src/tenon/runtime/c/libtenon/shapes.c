/* The shapes of an engine's inputs: one of the bundle's bindings or, of a model, another bundle of it. */

#include "engine.h"
#include "errors.h"

#include <string.h>

/* The handle of the bundle describes only bindings of what was opened. */
int tenon_engine_binding(const TenonEngine *handle) {
  const Engine *engine = tn_engine_of(handle);
  return engine != NULL && engine->bundle == engine->opened ? engine->binding : -1;
}

/* Takes the place of the engine's bundle, which is released. */
static TenonStatus change_bundle(Engine *engine, Bundle *bundle) {
  const Description *about = &bundle->about;
  Engine fresh = {.bundle = bundle, .gpu_options = engine->gpu_options};
  const TenonStatus status = tn_take_buffers(&fresh, 0);
  if (status != TENON_OK) {
    tn_release_buffers(&fresh);
    return status;
  }
  tn_stop_pools(engine);
  tn_stop_queues(engine);
  tn_release_buffers(engine);
  tn_bundle_retain(bundle);
  tn_bundle_release(engine->bundle);
  engine->bundle = bundle;
  engine->parts = fresh.parts;
  engine->tensors = fresh.tensors;
  engine->bound_inputs = fresh.bound_inputs;
  engine->bound_outputs = fresh.bound_outputs;
  engine->given_shapes = fresh.given_shapes;
  engine->pools = fresh.pools;
  engine->queues = fresh.queues;
  if (engine->threads > about->threads) engine->threads = about->threads;
  tn_activations_want(engine->activations, (size_t)about->activations, (size_t)about->alignment);
  return TENON_OK;
}

static TenonStatus select_binding(Engine *engine, Bundle *bundle, int binding) {
  const Binding *first = bundle->about.bindings;
  const int is_reset = bundle != engine->bundle || !tn_same_states(tn_engine_binding(engine), &first[binding]);
  const TenonStatus status = bundle != engine->bundle ? change_bundle(engine, bundle) : TENON_OK;
  if (status != TENON_OK) return status;
  memset(engine->bound_inputs, 0, (size_t)first->input_count * sizeof *engine->bound_inputs);
  memset(engine->bound_outputs, 0, (size_t)first->output_count * sizeof *engine->bound_outputs);
  engine->binding = binding;
  if (is_reset) tn_reset(engine);
  tn_set_largest_sizes(engine);
  return TENON_OK;
}

/* The binding, with these shapes of its inputs. */
static TenonStatus select_for(Engine *engine, Bundle *bundle, int binding, const int64_t *shapes) {
  const TenonStatus status = select_binding(engine, bundle, binding);
  return status == TENON_OK ? tn_set_shapes(engine, shapes) : status;
}

TenonStatus tenon_engine_select(TenonEngine *handle, int binding) {
  Engine *engine;
  TenonStatus status = tn_engine_take(handle, &engine);
  if (status != TENON_OK) return status;
  const Binding *chosen;
  status = tn_find_binding(&engine->opened->about, binding, &chosen);
  if (status == TENON_OK) status = select_binding(engine, engine->opened, binding);
  tn_engine_leave(engine);
  return status;
}

/* The number of the binding, or -1. */
static int find_binding(const Description *about, const int64_t *shapes, size_t count) {
  for (int i = 0; i < about->binding_count; i++)
    if (tn_takes_shapes(&about->bindings[i], shapes, count)) return i;
  return -1;
}

/* ---------------------------------------------------------------------------------------- further bundles of a model */

/* The shapes of all inputs as options; fails if there are other extents than these inputs have. */
static TenonStatus list_shapes(Texts *list, const Engine *engine, const int64_t *shapes, size_t count) {
  const Binding *binding = engine->opened->about.bindings;
  const char *name = engine->opened->about.name;
  size_t at = 0, needed = 0;
  for (int i = 0; i < binding->input_count; i++) needed += (size_t)binding->inputs[i].tensor.rank;
  if (count != needed)
    return tn_fail(TENON_WRONG_SIZE, "%s: there are %zu extents, and its inputs have %zu", name, count, needed);
  for (int i = 0; i < binding->input_count; i++) {
    const TenonTensor *tensor = &binding->inputs[i].tensor;
    tn_texts_add(list, tn_pool_shape(list->pool, tensor->name, shapes + at, tensor->rank));
    at += (size_t)tensor->rank;
  }
  return list->has_failed ? tn_fail(TENON_OUT_OF_MEMORY, "%s: no memory", name) : TENON_OK;
}

static TenonStatus compile_for(Engine *engine, const int64_t *shapes, size_t count) {
  Pool pool = {0};
  Texts list = {.pool = &pool};
  Bundle *other = NULL;
  TenonStatus status = list_shapes(&list, engine, shapes, count);
  if (status == TENON_OK) status = tn_bundle_for_shapes(engine->opened, list.list, &other);
  tn_pool_release(&pool);
  if (status != TENON_OK) return status;
  const int found = find_binding(&other->about, shapes, count);
  status = found >= 0 ? select_for(engine, other, found, shapes)
                      : tn_fail(TENON_WRONG_SIZE, "%s cannot have these shapes of inputs", engine->opened->about.name);
  tn_bundle_release(other);
  return status;
}

static TenonStatus select_shapes(Engine *engine, const int64_t *shapes, size_t count) {
  Bundle *const bundles[] = {engine->opened, engine->bundle};
  for (int i = 0; i < 2; i++) {
    const int found = find_binding(&bundles[i]->about, shapes, count);
    if (found >= 0) return select_for(engine, bundles[i], found, shapes);
  }
  if (engine->opened->model != NULL) return compile_for(engine, shapes, count);
  const Description *about = &engine->opened->about;
  if (engine->opened->is_sealed_model)
    return tn_fail(TENON_WRONG_SIZE, "%s has no binding for these shapes, and its model is encrypted or transformed, whose "
                   "key is not kept: open the model with them (options.shapes)", about->name);
  return tn_fail(TENON_WRONG_SIZE, "%s has no binding for these shapes, of %d: compile it with one more --shape", about->name,
                 about->binding_count);
}

TenonStatus tenon_engine_select_shapes(TenonEngine *handle, const int64_t *shapes, size_t count) {
  Engine *engine;
  TenonStatus status = tn_engine_take(handle, &engine);
  if (status != TENON_OK) return status;
  if (shapes == NULL && count > 0)
    status = tn_fail(TENON_INVALID_ARGUMENT, "tenon_engine_select_shapes: the shapes are NULL");
  else
    status = select_shapes(engine, shapes, count);
  tn_engine_leave(engine);
  return status;
}
