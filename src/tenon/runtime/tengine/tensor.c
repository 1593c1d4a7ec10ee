/* Tensors: shapes, buffers, types and quantisation of inputs and outputs. */

#include "graph.h"
#include "internal.h"

#include <string.h>

Tensor *tg_tensor(tensor_t handle) { return tn_handle_object(TENSOR_HANDLE, handle); }

static const struct {
  TenonType type;
  int tengine, bytes;
} types[] = {
    {TENON_F32, TENGINE_DT_FP32, 4}, {TENON_F16, TENGINE_DT_FP16, 2},  {TENON_I8, TENGINE_DT_INT8, 1},
    {TENON_U8, TENGINE_DT_UINT8, 1}, {TENON_I32, TENGINE_DT_INT32, 4}, {TENON_I16, TENGINE_DT_INT16, 2},
};

static int row_of(const Tensor *tensor) {
  for (int i = 0; i < (int)(sizeof types / sizeof *types); i++)
    if (types[i].type == tensor->about.type) return i;
  return -1;
}

/* Bytes of the shape that the program has set, which differs from the bundle's until prerun. */
static int64_t bytes_of(const Tensor *tensor) {
  if (!tensor->graph->has_other_shapes || tensor->is_output) return (int64_t)tensor->about.bytes;
  int64_t bytes = row_of(tensor) >= 0 ? types[row_of(tensor)].bytes : 1;
  for (int i = 0; i < tensor->dim_count; i++) bytes *= tensor->dims[i];
  return bytes;
}

/* The memory that the tensor has: the program's, else the engine's. */
static void *memory_of(const Tensor *tensor) {
  void *data = NULL;
  const Graph *graph = tensor->graph;
  if (tensor->buffer != NULL) return tensor->buffer;
  if (graph->engine == NULL || (tensor->is_output && !graph->has_run)) return NULL;
  (tensor->is_output ? tenon_engine_output_data : tenon_engine_input_data)(graph->engine, tensor->number, &data);
  return data;
}

const char *get_tensor_name(tensor_t handle) {
  const Tensor *tensor = tg_tensor(handle);
  return tensor != NULL ? tensor->about.name : NULL;
}

int get_tensor_shape(tensor_t handle, int dims[], int dim_number) {
  const Tensor *tensor = tg_tensor(handle);
  if (tensor == NULL || dims == NULL || dim_number < tensor->dim_count) return -1;
  memcpy(dims, tensor->dims, (size_t)tensor->dim_count * sizeof *dims);
  return tensor->dim_count;
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
  if (tensor->is_output) return tg_error("the shape of output '%s' follows from the inputs'", tensor->about.name);
  if (tensor->graph->engine != NULL) return tg_error("set_tensor_shape: the graph is prepared: postrun_graph comes first");
  memcpy(tensor->dims, dims, bytes);
  tensor->dim_count = dim_number;
  tensor->buffer = NULL;
  tensor->graph->has_other_shapes = 1;
  return 0;
}

int get_tensor_buffer_size(tensor_t handle) {
  const Tensor *tensor = tg_tensor(handle);
  return tensor != NULL ? (int)bytes_of(tensor) : -1;
}

void *get_tensor_buffer(tensor_t handle) {
  const Tensor *tensor = tg_tensor(handle);
  return tensor != NULL ? memory_of(tensor) : NULL;
}

int set_tensor_buffer(tensor_t handle, void *buffer, int size) {
  Tensor *tensor = tg_tensor(handle);
  if (tensor == NULL || buffer == NULL) return -1;
  if (size != bytes_of(tensor))
    return tg_error("the buffer for '%s' has %d bytes and the tensor %lld", tensor->about.name, size,
                    (long long)bytes_of(tensor));
  tensor->buffer = buffer;
  return 0;
}

int get_tensor_data(tensor_t handle, void *data, int size) {
  const Tensor *tensor = tg_tensor(handle);
  const void *from = tensor != NULL ? memory_of(tensor) : NULL;
  if (from == NULL || data == NULL || size < bytes_of(tensor)) return -1;
  memcpy(data, from, (size_t)bytes_of(tensor));
  return 0;
}

int set_tensor_data(tensor_t handle, const void *data, int size) {
  Tensor *tensor = tg_tensor(handle);
  void *to = tensor != NULL ? memory_of(tensor) : NULL;
  if (to == NULL || data == NULL || size != bytes_of(tensor)) return -1;
  memcpy(to, data, (size_t)size);
  return 0;
}

int get_tensor_data_type(tensor_t handle) {
  const Tensor *tensor = tg_tensor(handle);
  const int row = tensor != NULL ? row_of(tensor) : -1;
  return row >= 0 ? types[row].tengine : -1;
}

int set_tensor_data_type(tensor_t handle, int data_type) {
  const Tensor *tensor = tg_tensor(handle);
  if (tensor == NULL) return -1;
  if (data_type == get_tensor_data_type(handle)) return 0;
  return tg_error("set_tensor_data_type: a compiled model keeps the type of '%s'", tensor->about.name);
}

int get_tensor_layout(tensor_t handle) { return tg_tensor(handle) != NULL ? TENGINE_LAYOUT_NCHW : -1; }

int set_tensor_layout(tensor_t handle, int layout) {
  return tg_tensor(handle) != NULL && layout == TENGINE_LAYOUT_NCHW ? 0 : -1;
}

int get_tensor_quant_param(tensor_t handle, float *scale, int *zero_point, int number) {
  const Tensor *tensor = tg_tensor(handle);
  if (tensor == NULL || scale == NULL || zero_point == NULL) return -1;
  if (!tensor->about.quantised && !tensor->has_own_quantisation) return 0;
  if (number < 1) return -1;
  scale[0] = tensor->has_own_quantisation ? tensor->scale : (float)tensor->about.scale;
  zero_point[0] = tensor->has_own_quantisation ? tensor->zero_point : tensor->about.zero_point;
  return 1;
}

/* Kept for get_tensor_quant_param: a compiled model's arithmetic does not change. */
int set_tensor_quant_param(tensor_t handle, const float *scale, const int *zero_point, int number) {
  Tensor *tensor = tg_tensor(handle);
  if (tensor == NULL || scale == NULL || zero_point == NULL || number != 1) return -1;
  tensor->has_own_quantisation = 1;
  tensor->scale = scale[0];
  tensor->zero_point = zero_point[0];
  return 0;
}

void release_graph_tensor(tensor_t tensor) { (void)tensor; }

/* ------------------------------------------------------------------------------------------------------------ nodes */

static Tensor *node_of(node_t handle) { return tn_handle_object(NODE_HANDLE, handle); }

const char *get_node_name(node_t node) {
  const Tensor *tensor = node_of(node);
  return tensor != NULL ? tensor->about.name : NULL;
}

const char *get_node_op(node_t node) {
  const Tensor *tensor = node_of(node);
  return tensor == NULL ? NULL : tensor->is_output ? "Output" : "InputOp";
}

const char *get_node_device(node_t node) { return node_of(node) != NULL ? "CPU" : NULL; }

/* What the layer of an output reads is no tensor of the program. */
tensor_t get_node_input_tensor(node_t node, int number) {
  if (node_of(node) != NULL) tg_error("get_node_input_tensor: the node has no input tensor %d", number);
  return NULL;
}

tensor_t get_node_output_tensor(node_t node, int number) {
  const Tensor *tensor = node_of(node);
  return tensor != NULL && number == 0 ? tensor->handle : NULL;
}

int get_node_input_number(node_t node) { return node_of(node) != NULL ? 0 : -1; }

int get_node_output_number(node_t node) { return node_of(node) != NULL ? 1 : -1; }

void release_graph_node(node_t node) { (void)node; }
