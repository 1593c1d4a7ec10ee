/* Sizes that a run chooses: inputs that hold extents of other inputs, the true shapes that follow from them, and arrays
   without gaps as the contents of tensors whose rows lie as far apart as in the largest ones. */

#include "engine.h"
#include "errors.h"

#include <string.h>

static const Port *holder_of(const Binding *binding, int number) {
  return number < NUMBER_OF_OUTPUTS ? &binding->inputs[number] : &binding->outputs[number - NUMBER_OF_OUTPUTS];
}

static int64_t number_at(const Engine *engine, const Port *port) {
  int64_t number;
  memcpy(&number, engine->tensors + port->offset, sizeof number);
  return number;
}

static void set_number(const Engine *engine, const Port *port, int64_t number) {
  memcpy(engine->tensors + port->offset, &number, sizeof number);
}

void tn_true_shape(const Engine *engine, const Port *port, int64_t shape[TENON_MAX_RANK]) {
  const Binding *binding = tn_engine_binding(engine);
  memcpy(shape, port->tensor.shape, sizeof port->tensor.shape);
  for (int i = 0; i < port->tensor.rank; i++) {
    if (port->extents[i] < 0) continue;
    const int64_t extent = number_at(engine, holder_of(binding, port->extents[i]));
    if (extent < shape[i]) shape[i] = extent < 0 ? 0 : extent;
  }
}

/* A size that is a state stays as it is. */
void tn_set_largest_sizes(Engine *engine) {
  const Binding *binding = tn_engine_binding(engine);
  for (int i = 0; i < binding->input_count; i++) {
    const TenonTensor *tensor = &binding->inputs[i].tensor;
    if (tensor->is_size && !tensor->is_state) set_number(engine, &binding->inputs[i], tensor->most);
  }
  memset(engine->given_shapes, 0, (size_t)binding->input_count * sizeof *engine->given_shapes);
}

/* ---------------------------------------------------------------------------------------------------------- checks */

static int is_in_range(const TenonTensor *tensor, int64_t size) {
  return size >= tensor->least && size <= tensor->most && (size - tensor->least) % tensor->step == 0;
}

static TenonStatus out_of_range(const Binding *binding, const TenonTensor *tensor, int64_t size) {
  return tn_fail(TENON_WRONG_SIZE, "%s: the size '%s' is %lld, and was compiled for %lld to %lld in steps of %lld",
                 binding->entry, tensor->name, (long long)size, (long long)tensor->least, (long long)tensor->most,
                 (long long)tensor->step);
}

TenonStatus tn_check_sizes(const Engine *engine) {
  const Binding *binding = tn_engine_binding(engine);
  for (int i = 0; i < binding->input_count; i++) {
    const Port *port = &binding->inputs[i];
    if (port->tensor.is_size && !is_in_range(&port->tensor, number_at(engine, port)))
      return out_of_range(binding, &port->tensor, number_at(engine, port));
  }
  return TENON_OK;
}

TenonStatus tn_check_given_shapes(const Engine *engine) {
  const Binding *binding = tn_engine_binding(engine);
  for (int i = 0; i < binding->input_count; i++) {
    const Port *port = &binding->inputs[i];
    for (int axis = 0; engine->given_shapes[i].is_given && axis < port->tensor.rank; axis++) {
      if (port->extents[axis] < 0) continue;
      const Port *holder = holder_of(binding, port->extents[axis]);
      const int64_t given = engine->given_shapes[i].extents[axis], size = number_at(engine, holder);
      if (given != size)
        return tn_fail(TENON_WRONG_SIZE, "%s: the size '%s' is %lld in '%s', and %lld in another input or by its own value",
                       binding->entry, holder->tensor.name, (long long)given, port->tensor.name, (long long)size);
    }
  }
  return TENON_OK;
}

static TenonStatus check_shape(const Binding *binding, const Port *port, const int64_t *shape, int rank) {
  const TenonTensor *tensor = &port->tensor;
  if (rank != tensor->rank)
    return tn_fail(TENON_WRONG_SIZE, "%s: '%s' has %d axes, not %d", binding->entry, tensor->name, (int)tensor->rank, rank);
  for (int i = 0; i < rank; i++) {
    if (port->extents[i] >= 0) {
      const TenonTensor *size = &holder_of(binding, port->extents[i])->tensor;
      if (!is_in_range(size, shape[i])) return out_of_range(binding, size, shape[i]);
    } else if (shape[i] != tensor->shape[i])
      return tn_fail(TENON_WRONG_SIZE, "%s: axis %d of '%s' has %lld elements, not %lld", binding->entry, i, tensor->name,
                     (long long)tensor->shape[i], (long long)shape[i]);
  }
  return TENON_OK;
}

/* Whether inputs can have these shapes, which lie one after another. */
int tn_takes_shapes(const Binding *binding, const int64_t *shapes, size_t count) {
  size_t at = 0;
  for (int i = 0; i < binding->input_count; i++) {
    const Port *port = &binding->inputs[i];
    for (int axis = 0; axis < port->tensor.rank; axis++, at++) {
      if (at == count) return 0;
      const int is_open = port->extents[axis] >= 0;
      if (is_open && !is_in_range(&holder_of(binding, port->extents[axis])->tensor, shapes[at])) return 0;
      if (!is_open && shapes[at] != port->tensor.shape[axis]) return 0;
    }
  }
  return at == count;
}

/* ---------------------------------------------------------------------------------------------------------- shapes */

static void set_shape(Engine *engine, const Binding *binding, int input, const int64_t *shape) {
  const Port *port = &binding->inputs[input];
  for (int axis = 0; axis < port->tensor.rank; axis++) {
    if (port->extents[axis] < 0) continue;
    set_number(engine, holder_of(binding, port->extents[axis]), shape[axis]);
    engine->given_shapes[input].extents[axis] = shape[axis];
    engine->given_shapes[input].is_given = !port->tensor.is_state; /* a run changes that of a state */
  }
}

TenonStatus tn_set_shapes(Engine *engine, const int64_t *shapes) {
  const Binding *binding = tn_engine_binding(engine);
  for (int i = 0; i < binding->input_count; i++) {
    set_shape(engine, binding, i, shapes);
    shapes += binding->inputs[i].tensor.rank;
  }
  return tn_check_given_shapes(engine);
}

static TenonStatus find_port(TenonEngine *handle, int number, int is_output, Engine **engine, const Port **port) {
  const TenonStatus status = tn_engine_enter(handle, engine);
  if (status != TENON_OK) return status;
  return tn_find_port(&(*engine)->bundle->about, tn_engine_binding(*engine), number, is_output, port);
}

TenonStatus tenon_engine_set_input_shape(TenonEngine *handle, int input, const int64_t *shape, int rank) {
  Engine *engine;
  const Port *port;
  TenonStatus status = find_port(handle, input, 0, &engine, &port);
  if (status != TENON_OK) return status;
  if (shape == NULL && rank > 0)
    return tn_fail(TENON_INVALID_ARGUMENT, "tenon_engine_set_input_shape: the shape is NULL");
  const Binding *binding = tn_engine_binding(engine);
  status = check_shape(binding, port, shape, rank);
  if (status == TENON_OK) set_shape(engine, binding, input, shape);
  return status;
}

static TenonStatus shape_of(TenonEngine *handle, int number, int is_output, int64_t *shape, int *rank) {
  Engine *engine;
  const Port *port;
  const TenonStatus status = find_port(handle, number, is_output, &engine, &port);
  if (status != TENON_OK) return status;
  if (shape == NULL || rank == NULL)
    return tn_fail(TENON_INVALID_ARGUMENT, "tenon_engine_%s_shape: a result is NULL", is_output ? "output" : "input");
  tn_true_shape(engine, port, shape);
  *rank = port->tensor.rank;
  return TENON_OK;
}

TenonStatus tenon_engine_input_shape(TenonEngine *engine, int input, int64_t shape[TENON_MAX_RANK], int *rank) {
  return shape_of(engine, input, 0, shape, rank);
}

TenonStatus tenon_engine_output_shape(TenonEngine *engine, int output, int64_t shape[TENON_MAX_RANK], int *rank) {
  return shape_of(engine, output, 1, shape, rank);
}

/* --------------------------------------------------------------------------------------------------------- content */

static uint64_t element_bytes(const TenonTensor *tensor) {
  uint64_t count = 1;
  for (int i = 0; i < tensor->rank; i++) count *= (uint64_t)tensor->shape[i];
  return count > 0 ? tensor->bytes / count : 0;
}

uint64_t tn_true_bytes(const Engine *engine, const Port *port) {
  int64_t shape[TENON_MAX_RANK];
  uint64_t bytes = element_bytes(&port->tensor);
  tn_true_shape(engine, port, shape);
  for (int i = 0; i < port->tensor.rank; i++) bytes *= (uint64_t)shape[i];
  return bytes;
}

/* The distance in bytes of the row with these indices from the first one. */
static uint64_t row_offset(const TenonTensor *tensor, const int64_t *index, uint64_t element) {
  uint64_t offset = 0;
  for (int i = 0; i < tensor->rank; i++) offset = offset * (uint64_t)tensor->shape[i] + (uint64_t)index[i];
  return offset * element;
}

/* The next row, in order; 0 behind the last one. */
static int next_row(const TenonTensor *tensor, const int64_t *shape, int64_t *index) {
  for (int i = tensor->rank - 2; i >= 0; i--) {
    if (++index[i] < shape[i]) return 1;
    index[i] = 0;
  }
  return 0;
}

void tn_copy_tensor(const Engine *engine, const Port *port, uint8_t *packed, int is_output) {
  int64_t shape[TENON_MAX_RANK], index[TENON_MAX_RANK] = {0};
  const TenonTensor *tensor = &port->tensor;
  const uint64_t element = element_bytes(tensor);
  uint8_t *whole = engine->tensors + port->offset;
  if (tn_true_bytes(engine, port) == 0) return;
  tn_true_shape(engine, port, shape);
  const size_t row = (size_t)(element * (tensor->rank > 0 ? (uint64_t)shape[tensor->rank - 1] : 1));
  do {
    uint8_t *own = whole + row_offset(tensor, index, element);
    memmove(is_output ? packed : own, is_output ? own : packed, row);
    packed += row;
  } while (next_row(tensor, shape, index));
}
