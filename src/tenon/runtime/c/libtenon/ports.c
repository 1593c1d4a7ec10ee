/* The inputs and outputs of an engine. */

#include "engine.h"
#include "errors.h"

#include <string.h>

static TenonStatus find_port(const Engine *engine, int number, int output, const Port **port) {
  return tn_find_port(&engine->bundle->about, tn_engine_binding(engine), number, output, port);
}

static TenonStatus port_of(TenonEngine *handle, int number, int output, Engine **engine, const Port **port) {
  const TenonStatus status = tn_engine_enter(handle, engine);
  return status == TENON_OK ? find_port(*engine, number, output, port) : status;
}

/* Also during a run, which does not change it. */
static TenonStatus describe(const TenonEngine *handle, int number, int output, TenonTensor *tensor) {
  const Engine *engine = tn_engine_of(handle);
  const Port *port;
  const TenonStatus status = engine != NULL ? find_port(engine, number, output, &port) : TENON_INVALID_HANDLE;
  if (status != TENON_OK) return status;
  if (tensor == NULL) return tn_fail(TENON_INVALID_ARGUMENT, "%s: the result is NULL", port->tensor.name);
  *tensor = port->tensor;
  return TENON_OK;
}

TenonStatus tenon_engine_input(const TenonEngine *engine, int input, TenonTensor *tensor) {
  return describe(engine, input, 0, tensor);
}

TenonStatus tenon_engine_output(const TenonEngine *engine, int output, TenonTensor *tensor) {
  return describe(engine, output, 1, tensor);
}

static TenonStatus memory_of(TenonEngine *handle, int number, int output, void **data) {
  Engine *engine;
  const Port *port;
  const TenonStatus status = port_of(handle, number, output, &engine, &port);
  if (status != TENON_OK) return status;
  if (data == NULL) return tn_fail(TENON_INVALID_ARGUMENT, "%s: the result is NULL", port->tensor.name);
  *data = engine->tensors + port->offset;
  return TENON_OK;
}

TenonStatus tenon_engine_input_data(TenonEngine *engine, int input, void **data) {
  return memory_of(engine, input, 0, data);
}

TenonStatus tenon_engine_output_data(TenonEngine *engine, int output, void **data) {
  return memory_of(engine, output, 1, data);
}

/* A buffer that `is_copied` at once may have the bytes of the true shape alone. */
static TenonStatus check_buffer(const Engine *engine, const Port *port, const void *data, size_t bytes, int is_copied) {
  const TenonTensor *tensor = &port->tensor;
  if (data == NULL && bytes > 0)
    return tn_fail(TENON_INVALID_ARGUMENT, "%s: the buffer for '%s' is NULL", engine->bundle->about.name, tensor->name);
  if (bytes == tensor->bytes || (is_copied && bytes == tn_true_bytes(engine, port))) return TENON_OK;
  return tn_fail(TENON_WRONG_SIZE, "%s: the buffer for '%s' has %zu bytes and the tensor %llu", engine->bundle->about.name,
                 tensor->name, bytes, (unsigned long long)tensor->bytes);
}

TenonStatus tenon_engine_set_input(TenonEngine *handle, int input, const void *data, size_t bytes) {
  Engine *engine;
  const Port *port;
  TenonStatus status = port_of(handle, input, 0, &engine, &port);
  if (status == TENON_OK) status = check_buffer(engine, port, data, bytes, 1);
  if (status != TENON_OK) return status;
  if (bytes < port->tensor.bytes) tn_copy_tensor(engine, port, (uint8_t *)(uintptr_t)data, 0);
  else if (bytes > 0) memmove(engine->tensors + port->offset, data, bytes);
  return TENON_OK;
}

TenonStatus tenon_engine_get_output(TenonEngine *handle, int output, void *data, size_t bytes) {
  Engine *engine;
  const Port *port;
  TenonStatus status = port_of(handle, output, 1, &engine, &port);
  if (status == TENON_OK) status = check_buffer(engine, port, data, bytes, 1);
  if (status != TENON_OK) return status;
  if (bytes < port->tensor.bytes) tn_copy_tensor(engine, port, data, 1);
  else if (bytes > 0) memmove(data, engine->tensors + port->offset, bytes);
  return TENON_OK;
}

TenonStatus tenon_engine_bind_input(TenonEngine *handle, int input, const void *data, size_t bytes) {
  Engine *engine;
  const Port *port;
  TenonStatus status = port_of(handle, input, 0, &engine, &port);
  if (status == TENON_OK && data != NULL) status = check_buffer(engine, port, data, bytes, 0);
  if (status == TENON_OK) engine->bound_inputs[input] = data;
  return status;
}

TenonStatus tenon_engine_bind_output(TenonEngine *handle, int output, void *data, size_t bytes) {
  Engine *engine;
  const Port *port;
  TenonStatus status = port_of(handle, output, 1, &engine, &port);
  if (status == TENON_OK && data != NULL) status = check_buffer(engine, port, data, bytes, 0);
  if (status == TENON_OK) engine->bound_outputs[output] = data;
  return status;
}
