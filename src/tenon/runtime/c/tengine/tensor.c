/* Tensors: shapes, buffers, types and quantisation. */

#include "tensor.h"
#include "messages.h"

#include <limits.h>
#include <string.h>

static const struct {
  TenonType type;
  int tengine, bytes;
} types[] = {
    {TENON_F32, TENGINE_DT_FP32, 4}, {TENON_F16, TENGINE_DT_FP16, 2},  {TENON_I8, TENGINE_DT_INT8, 1},
    {TENON_U8, TENGINE_DT_UINT8, 1}, {TENON_I32, TENGINE_DT_INT32, 4}, {TENON_I16, TENGINE_DT_INT16, 2},
};

enum { TYPES = sizeof types / sizeof *types };

int64_t tg_element_bytes(int data_type) {
  for (int i = 0; i < TYPES; i++)
    if (types[i].tengine == data_type) return types[i].bytes;
  return 0;
}

int tg_data_type(TenonType type) {
  for (int i = 0; i < TYPES; i++)
    if (types[i].type == type) return types[i].tengine;
  return -1;
}

/* 0 of a shape that is not known yet. */
int64_t tg_bytes(const Tensor *tensor) {
  int64_t bytes = tg_element_bytes(tensor->data_type);
  for (int i = 0; i < tensor->dim_count; i++) {
    if (tensor->dims[i] < 0 || (tensor->dims[i] > 0 && bytes > INT32_MAX / tensor->dims[i])) return 0;
    bytes *= tensor->dims[i];
  }
  return tensor->dim_count > 0 || tensor->kind == TENSOR_TYPE_CONST || tensor->graph->is_opaque ? bytes : 0;
}

const void *tg_data(const Tensor *tensor) {
  if (tensor->buffer != NULL) return tensor->buffer;
  if (tensor->content != NULL) return tensor->content;
  const int is_result = !tensor->is_input && !(tensor->producer != NULL && tensor->producer->type == INPUT_TYPE);
  return is_result && !tensor->graph->has_run ? NULL : tensor->memory;
}

/* ---------------------------------------------------------------------------------------------------- names, shapes */

const char *get_tensor_name(tensor_t handle) {
  const Tensor *tensor = tg_tensor(handle);
  return tensor != NULL ? tensor->name : NULL;
}

int get_tensor_shape(tensor_t handle, int dims[], int dim_number) {
  const Tensor *tensor = tg_tensor(handle);
  if (tensor == NULL || dims == NULL || dim_number < tensor->dim_count) return -1;
  memcpy(dims, tensor->dims, (size_t)tensor->dim_count * sizeof *dims);
  return tensor->dim_count;
}

int tg_same_but_for_ones(const int *a, int a_count, const int *b, int b_count) {
  int i = 0, j = 0;
  for (;; i++, j++) {
    while (i < a_count && a[i] == 1) i++;
    while (j < b_count && b[j] == 1) j++;
    if (i == a_count || j == b_count || a[i] != b[j]) return i == a_count && j == b_count;
  }
}

int set_tensor_shape(tensor_t handle, const int dims[], int dim_number) {
  Tensor *tensor = tg_tensor(handle);
  if (tensor == NULL || dims == NULL || dim_number < 1 || dim_number > MAX_SHAPE_DIM_NUM) return -1;
  int64_t elements = 1;
  for (int i = 0; i < dim_number; i++) {
    if (dims[i] < 1 || (elements *= dims[i]) > INT32_MAX) return tg_error("set_tensor_shape: a shape of [%d, ...]", dims[i]);
  }
  const size_t bytes = (size_t)dim_number * sizeof *dims;
  if (dim_number == tensor->dim_count && memcmp(dims, tensor->dims, bytes) == 0) return 0;
  Graph *graph = tensor->graph;
  if (graph->is_opaque && tg_same_but_for_ones(tensor->dims, tensor->dim_count, dims, dim_number)) return 0;
  if (!tensor->is_input && (graph->is_opaque || (graph->model.data != NULL && tensor->kind == TENSOR_TYPE_VAR)))
    return tg_error("the shape of '%s' follows from the inputs'", tensor->name);
  if (graph->is_prepared) return tg_error("set_tensor_shape: the graph is prepared: postrun_graph comes first");
  if (dim_number != tensor->dim_count && !graph->is_opaque) graph->is_changed = 1; /* the compiler keeps a file's ranks */
  memcpy(tensor->dims, dims, bytes);
  tensor->dim_count = dim_number;
  tensor->buffer = NULL;
  if (tensor->kind == TENSOR_TYPE_CONST) tensor->content = NULL, graph->is_changed = 1;
  graph->has_other_shapes = 1;
  graph->is_planned = 0;
  return 0;
}

/* ---------------------------------------------------------------------------------------------------------- buffers */

int get_tensor_buffer_size(tensor_t handle) {
  const Tensor *tensor = tg_tensor(handle);
  return tensor != NULL ? (int)tg_bytes(tensor) : -1;
}

void *get_tensor_buffer(tensor_t handle) {
  const Tensor *tensor = tg_tensor(handle);
  void *data = NULL;
  if (tensor == NULL) return NULL;
  const void *found = tg_data(tensor);
  memcpy(&data, &found, sizeof data); /* the caller gets to write inputs, and must not write constants of a file */
  return data;
}

int set_tensor_buffer(tensor_t handle, void *buffer, int size) {
  Tensor *tensor = tg_tensor(handle);
  if (tensor == NULL || buffer == NULL) return -1;
  Graph *graph = tensor->graph;
  if (size != tg_bytes(tensor))
    return tg_error("the buffer for '%s' has %d bytes and the tensor %lld", tensor->name, size,
                    (long long)tg_bytes(tensor));
  if (tensor->kind == TENSOR_TYPE_CONST) {
    if (graph->is_prepared)
      return tg_error("set_tensor_buffer: '%s' is compiled into the prepared graph: postrun_graph comes first", tensor->name);
    graph->is_changed = 1;
    graph->is_planned = 0;
  }
  tensor->buffer = buffer;
  return 0;
}

int get_tensor_data(tensor_t handle, void *data, int size) {
  const Tensor *tensor = tg_tensor(handle);
  const void *from = tensor != NULL ? tg_data(tensor) : NULL;
  if (from == NULL || data == NULL || size < tg_bytes(tensor)) return -1;
  memcpy(data, from, (size_t)tg_bytes(tensor));
  return 0;
}

int set_tensor_data(tensor_t handle, const void *data, int size) {
  Tensor *tensor = tg_tensor(handle);
  if (tensor == NULL || data == NULL || size != tg_bytes(tensor)) return -1;
  void *to = tensor->buffer != NULL ? tensor->buffer : tensor->memory;
  if (to == NULL) return -1;
  memcpy(to, data, (size_t)size);
  return 0;
}

/* ------------------------------------------------------------------------------------------------------------ types */

int get_tensor_data_type(tensor_t handle) {
  const Tensor *tensor = tg_tensor(handle);
  return tensor != NULL && tg_element_bytes(tensor->data_type) > 0 ? tensor->data_type : -1;
}

int set_tensor_data_type(tensor_t handle, int data_type) {
  Tensor *tensor = tg_tensor(handle);
  if (tensor == NULL) return -1;
  if (data_type == tensor->data_type) return 0;
  if (tg_element_bytes(data_type) == 0) return tg_error("set_tensor_data_type: there is no data type %d", data_type);
  if (tensor->graph->model.data != NULL || tensor->graph->is_opaque || tensor->graph->is_prepared)
    return tg_error("set_tensor_data_type: a compiled model keeps the type of '%s'", tensor->name);
  tensor->data_type = data_type;
  tensor->graph->is_planned = 0;
  return 0;
}

int get_tensor_layout(tensor_t handle) {
  const Tensor *tensor = tg_tensor(handle);
  return tensor != NULL ? tensor->stated_layout : -1;
}

int set_tensor_layout(tensor_t handle, int layout) {
  Tensor *tensor = tg_tensor(handle);
  if (tensor == NULL) return -1;
  if (layout != TENGINE_LAYOUT_NCHW && layout != TENGINE_LAYOUT_NHWC)
    return tg_error("set_tensor_layout: there is no layout %d", layout);
  tensor->stated_layout = layout;
  return 0;
}

int get_tensor_quant_param(tensor_t handle, float *scale, int *zero_point, int number) {
  const Tensor *tensor = tg_tensor(handle);
  if (tensor == NULL || scale == NULL || zero_point == NULL) return -1;
  if (tensor->quant_count == 0) return 0;
  if (number < tensor->quant_count) return -1;
  memcpy(scale, tensor->scales, (size_t)tensor->quant_count * sizeof *scale);
  memcpy(zero_point, tensor->zero_points, (size_t)tensor->quant_count * sizeof *zero_point);
  return tensor->quant_count;
}

int set_tensor_quant_param(tensor_t handle, const float *scale, const int *zero_point, int number) {
  Tensor *tensor = tg_tensor(handle);
  if (tensor == NULL || scale == NULL || zero_point == NULL || number < 1 || number > INT32_MAX / 8) return -1;
  Graph *graph = tensor->graph;
  const size_t count = (size_t)number;
  if (count == (size_t)tensor->quant_count && memcmp(scale, tensor->scales, count * sizeof *scale) == 0 &&
      memcmp(zero_point, tensor->zero_points, count * sizeof *zero_point) == 0)
    return 0;
  float *scales = tn_pool_take(&graph->pool, count * sizeof *scales);
  int *zero_points = tn_pool_take(&graph->pool, count * sizeof *zero_points);
  if (scales == NULL || zero_points == NULL) return tg_error("no memory for the scales of '%s'", tensor->name);
  memcpy(scales, scale, count * sizeof *scales);
  memcpy(zero_points, zero_point, count * sizeof *zero_points);
  tensor->scales = scales;
  tensor->zero_points = zero_points;
  tensor->quant_count = number;
  if (!graph->is_prepared && !graph->is_opaque) graph->is_changed = 1, graph->is_planned = 0;
  return 0;
}

void release_graph_tensor(tensor_t tensor) { (void)tensor; }
