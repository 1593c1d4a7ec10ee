/* Nodes that the program computes itself (struct custom_kernel_ops), between the stages that are compiled. */

#include "custom_kernel.h"
#include "messages.h"
#include "tensor.h"

#include <string.h>

/* Programs that were compiled with Tengine's own header hand over structs of this layout. */
#if UINTPTR_MAX > UINT32_MAX
typedef char check_options[sizeof(struct options) == 24 ? 1 : -1];
typedef char check_tensor[sizeof(struct custom_kernel_tensor) == 112 ? 1 : -1];
typedef char check_ops[sizeof(struct custom_kernel_ops) == 104 ? 1 : -1];
#else
typedef char check_tensor[sizeof(struct custom_kernel_tensor) == 84 ? 1 : -1];
typedef char check_ops[sizeof(struct custom_kernel_ops) == 52 ? 1 : -1];
#endif

static int is_cpu(const char *device) { return device == NULL || strcmp(device, "CPU") == 0; }

void tg_release_kernel(const Graph *graph, struct custom_kernel_ops *ops) {
  for (int i = 0; i < graph->node_count; i++)
    if (graph->nodes[i]->kernel == ops) return;
  if (ops != NULL && ops->release != NULL) ops->release(ops);
}

int set_custom_kernel(node_t handle, const char *device, struct custom_kernel_ops *ops) {
  Node *node = tg_node(handle);
  if (node == NULL) return -1;
  if (ops == NULL || ops->run == NULL) return tg_error("set_custom_kernel: the functions, or run among them, are NULL");
  if (!is_cpu(device)) return tg_error("custom kernels run on the CPU, not on device %s", device);
  if (node->graph->is_opaque) return tg_error("node '%s' is compiled: a custom kernel needs a tmfile", node->name);
  if (node->graph->is_prepared) return tg_error("the graph is prepared: postrun_graph comes first");
  if (node->kernel != NULL && !ops->force) return tg_error("node '%s' has a custom kernel already", node->name);
  if (ops->op != NULL && node->op != NULL && strcmp(ops->op, node->op->name) != 0)
    return tg_error("node '%s' is a %s, and the custom kernel is for %s", node->name, node->op->name, ops->op);
  struct custom_kernel_ops *before = node->kernel;
  node->kernel = ops;
  node->graph->is_planned = 0;
  tg_release_kernel(node->graph, before);
  return 0;
}

int remove_custom_kernel(node_t handle, const char *device) {
  Node *node = tg_node(handle);
  if (node == NULL) return -1;
  if (node->kernel == NULL || !is_cpu(device)) return tg_error("node '%s' has no custom kernel", node->name);
  if (node->graph->is_prepared) return tg_error("the graph is prepared: postrun_graph comes first");
  struct custom_kernel_ops *before = node->kernel;
  node->kernel = NULL;
  node->graph->is_planned = 0;
  tg_release_kernel(node->graph, before);
  return 0;
}

/* ------------------------------------------------------------------------------------------------------------ shapes */

/* By the kernel's own function, else those of the first input; dimensions behind the last one are 0. */
static int infer_shapes(const Node *node) {
  int in[16][MAX_SHAPE_DIM_NUM + 1] = {{0}}, out[16][MAX_SHAPE_DIM_NUM + 1] = {{0}}, *outputs[16];
  const int *inputs[16];
  if (node->input_count < 1 || node->input_count > 16 || node->output_count > 16)
    return tg_error("node '%s': a custom kernel has 1 to 16 inputs and outputs", node->name);
  for (int i = 0; i < node->input_count; i++) {
    const Tensor *tensor = node->inputs[i];
    memcpy(in[i], tensor->dims, (size_t)tensor->dim_count * sizeof(int));
    inputs[i] = in[i];
  }
  for (int i = 0; i < node->output_count; i++) {
    memcpy(out[i], in[0], sizeof out[i]);
    outputs[i] = out[i];
  }
  if (node->kernel->infer_shape != NULL &&
      node->kernel->infer_shape(node->kernel, inputs, node->input_count, outputs, node->output_count, TENGINE_LAYOUT_NCHW) < 0)
    return tg_error("node '%s': infer_shape of its custom kernel failed", node->name);
  for (int i = 0; i < node->output_count; i++) {
    Tensor *tensor = node->outputs[i];
    tensor->dim_count = 0;
    while (tensor->dim_count < MAX_SHAPE_DIM_NUM && out[i][tensor->dim_count] > 0) {
      tensor->dims[tensor->dim_count] = out[i][tensor->dim_count];
      tensor->dim_count++;
    }
    if (tg_bytes(tensor) == 0) return tg_error("node '%s': its custom kernel gives '%s' no shape", node->name, tensor->name);
  }
  return 0;
}

static void describe(const Tensor *tensor, struct custom_kernel_tensor *view) {
  memset(view, 0, sizeof *view);
  view->dim_num = tensor->dim_count;
  memcpy(view->dim, tensor->dims, (size_t)tensor->dim_count * sizeof *view->dim);
  view->element_size = (int)tg_element_bytes(tensor->data_type);
  view->element_num = (int)(tg_bytes(tensor) / view->element_size);
  view->data_type = tensor->data_type;
  view->layout_type = TENGINE_LAYOUT_NCHW;
  view->quant_type = tensor->quant_count > 1;
  view->scale = tensor->scales;
  view->zero_point = tensor->zero_points;
}

int tg_prepare_kernel(Graph *graph, Stage *stage) {
  const Node *node = stage->kernel;
  const int count = node->input_count + node->output_count;
  if (infer_shapes(node) != 0) return -1;
  stage->views = tn_pool_take(&graph->stage_pool, (size_t)count * sizeof *stage->views);
  stage->view_pointers = tn_pool_take(&graph->stage_pool, (size_t)count * sizeof *stage->view_pointers);
  stage->results = tn_pool_take(&graph->stage_pool, (size_t)node->output_count * sizeof *stage->results);
  if (stage->views == NULL || stage->view_pointers == NULL || stage->results == NULL)
    return tg_error("no memory for a custom kernel");
  for (int i = 0; i < count; i++) {
    Tensor *tensor = i < node->input_count ? node->inputs[i] : node->outputs[i - node->input_count];
    describe(tensor, &stage->views[i]);
    stage->views[i].quant_number = &tensor->quant_count;
    stage->view_pointers[i] = &stage->views[i];
  }
  for (int i = 0; i < node->output_count; i++) {
    stage->results[i] = tn_pool_take(&graph->stage_pool, (size_t)tg_bytes(node->outputs[i]));
    if (stage->results[i] == NULL) return tg_error("no memory for the result of node '%s'", node->name);
  }
  return 0;
}

/* ------------------------------------------------------------------------------------------------------------- runs */

typedef int KernelFunction(struct custom_kernel_ops *ops, struct custom_kernel_tensor *inputs[], int input_num,
                           struct custom_kernel_tensor *outputs[], int output_num);

static int call(const Stage *stage, KernelFunction *function, const char *what) {
  const Node *node = stage->kernel;
  struct custom_kernel_tensor **views = stage->view_pointers;
  if (function == NULL || function(node->kernel, views, node->input_count, views + node->input_count, node->output_count) >= 0)
    return 0;
  return tg_error("node '%s': %s of its custom kernel failed", node->name, what);
}

static void point_at_data(const Stage *stage) {
  const Node *node = stage->kernel;
  for (int i = 0; i < node->input_count; i++) {
    const Tensor *tensor = node->inputs[i];
    const void *data = tensor->buffer != NULL ? tensor->buffer : tensor->content != NULL ? tensor->content : tensor->memory;
    memcpy(&stage->views[i].data, &data, sizeof data);
  }
  for (int i = 0; i < node->output_count; i++) {
    const Tensor *tensor = node->outputs[i];
    stage->views[node->input_count + i].data = tensor->buffer != NULL ? tensor->buffer : tensor->memory;
  }
}

int tg_prerun_kernel(const Stage *stage) {
  const Node *node = stage->kernel;
  struct custom_kernel_ops *ops = node->kernel;
  for (int i = 0; i < node->output_count; i++) node->outputs[i]->memory = stage->results[i];
  point_at_data(stage);
  struct custom_kernel_tensor **views = stage->view_pointers, **outputs = views + node->input_count;
  const struct custom_kernel_tensor **read_only, **read_only_outputs; /* bind only reads them */
  memcpy(&read_only, &views, sizeof views);
  memcpy(&read_only_outputs, &outputs, sizeof outputs);
  if (ops->bind != NULL && ops->bind(ops, read_only, node->input_count, read_only_outputs, node->output_count) < 0)
    return tg_error("node '%s': bind of its custom kernel failed", node->name);
  if (ops->prerun != NULL && ops->prerun(ops, views, node->input_count, outputs, node->output_count, 0) < 0)
    return tg_error("node '%s': prerun of its custom kernel failed", node->name);
  return 0;
}

int tg_run_kernel(const Stage *stage) {
  point_at_data(stage);
  return call(stage, stage->kernel->kernel->run, "run");
}

void tg_postrun_kernel(const Stage *stage) { call(stage, stage->kernel->kernel->postrun, "postrun"); }
