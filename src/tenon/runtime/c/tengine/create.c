/* Creating graphs from models or node by node, and finding their inputs and outputs. */

#include "custom_kernel.h"
#include "graph.h"
#include "handle.h"
#include "messages.h"
#include "stages.h"
#include "tmfile.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------------------------------------------------- creating */

static void end_graph(Graph *graph) {
  tg_end_stages(graph);
  for (int i = 0; i < graph->tensor_count; i++)
    if (graph->tensors[i]->handle != NULL) tn_handle_end(graph->tensors[i]->handle);
  for (int i = 0; i < graph->node_count; i++) {
    struct custom_kernel_ops *kernel = graph->nodes[i]->kernel;
    graph->nodes[i]->kernel = NULL;
    tg_release_kernel(graph, kernel);
    if (graph->nodes[i]->handle != NULL) tn_handle_end(graph->nodes[i]->handle);
  }
  if (graph->handle != NULL) tn_handle_end(graph->handle);
  tn_file_release(&graph->model);
  free(graph->tensors);
  free(graph->nodes);
  tn_pool_release(&graph->pool);
  free(graph);
}

static int mark_ends(Graph *graph) {
  for (int i = 0; i < graph->input_count; i++)
    for (int j = 0; j < graph->inputs[i]->output_count; j++) graph->inputs[i]->outputs[j]->is_input = 1;
  for (int i = 0; i < graph->output_count; i++)
    for (int j = 0; j < graph->outputs[i]->output_count; j++) graph->outputs[i]->outputs[j]->is_output = 1;
  for (int i = 0; i < graph->tensor_count && !graph->is_opaque; i++) {
    const Tensor *tensor = graph->tensors[i];
    if (tensor->kind == TENSOR_TYPE_CONST && tensor->content == NULL) graph->is_changed = 1; /* weights are made up */
  }
  return 0;
}

static int read_model(Graph *graph, const void *content, int size) {
  if (content != NULL) {
    uint8_t *copy = malloc((size_t)size);
    if (copy == NULL) return tg_error("create_graph: no memory for a model of %d bytes", size);
    memcpy(copy, content, (size_t)size);
    graph->model = (File){copy, (size_t)size, ALLOCATED, NULL};
  } else if (!tn_is_folder(graph->path) && tn_exists(graph->path) &&
             tn_file_map(graph->path, &graph->model) != TENON_OK) {
    return tg_error("create_graph: %s cannot be read", graph->path);
  }
  graph->is_opaque = !tg_is_tmfile(&graph->model);
  const int status = graph->is_opaque ? tg_open_opaque(graph) : tg_read_tmfile(graph);
  return status == 0 ? mark_ends(graph) : status;
}

static graph_t created(Graph *graph, int status) {
  if (status == 0 && tg_give_graph_handle(graph) == 0) return graph->handle;
  end_graph(graph);
  return NULL;
}

graph_t create_graph(context_t context, const char *model_format, const char *file_name, ...) {
  int size = 0;
  if (context != NULL && !tg_is_context(context)) return NULL;
  if (model_format != NULL && !tg_is_initialised()) return tg_error("create_graph: init_tengine comes first"), NULL;
  const int in_memory = model_format != NULL && strstr(model_format, ":m") != NULL;
  if (in_memory) {
    va_list arguments;
    va_start(arguments, file_name);
    size = va_arg(arguments, int);
    va_end(arguments);
  }
  if (model_format != NULL && file_name == NULL) return tg_error("create_graph: the file name is NULL"), NULL;
  if (in_memory && size <= 0) return tg_error("create_graph: the size of the model is %d", size), NULL;
  Graph *graph = calloc(1, sizeof *graph);
  if (graph == NULL) return NULL;
  const char *gpu = tg_context_gpu(context);
  strcpy(graph->device, tg_context_device(context));
  if (gpu != NULL && (graph->gpu = tn_pool_text(&graph->pool, gpu, strlen(gpu))) == NULL) return created(graph, -1);
  if (model_format == NULL) return graph->is_changed = 1, created(graph, 0);
  if (!in_memory) graph->path = tn_pool_text(&graph->pool, file_name, strlen(file_name));
  if (!in_memory && graph->path == NULL) return created(graph, -1);
  return created(graph, read_model(graph, in_memory ? file_name : NULL, size));
}

int destroy_graph(graph_t handle) {
  Graph *graph = tg_graph(handle);
  if (graph == NULL) return -1;
  end_graph(graph);
  return 0;
}

/* ------------------------------------------------------------------------------------------------- inputs, outputs */

static int set_ends(graph_t handle, const char *names[], int count, int is_output) {
  Graph *graph = tg_graph(handle);
  if (graph == NULL || names == NULL || count < 0) return -1;
  if (graph->is_opaque || graph->is_prepared)
    return tg_error("the %ss of %s cannot be changed", is_output ? "output" : "input",
                    graph->is_prepared ? "a prepared graph" : "a compiled model");
  Node **list = tn_pool_take(&graph->pool, (size_t)count * sizeof *list);
  if (list == NULL) return tg_error("no memory");
  for (int i = 0; i < count; i++) {
    list[i] = names[i] != NULL ? tg_find_node(graph, names[i]) : NULL;
    if (list[i] == NULL) return tg_error("the graph has no node '%s'", names[i] != NULL ? names[i] : "NULL");
  }
  for (int i = 0; i < graph->tensor_count; i++)
    *(is_output ? &graph->tensors[i]->is_output : &graph->tensors[i]->is_input) = 0;
  *(is_output ? &graph->outputs : &graph->inputs) = list;
  *(is_output ? &graph->output_count : &graph->input_count) = count;
  graph->is_changed = 1;
  graph->is_planned = 0;
  return mark_ends(graph);
}

int set_graph_input_node(graph_t graph, const char *nodes[], int count) { return set_ends(graph, nodes, count, 0); }

int set_graph_output_node(graph_t graph, const char *nodes[], int count) { return set_ends(graph, nodes, count, 1); }

int get_graph_input_node_number(graph_t handle) {
  const Graph *graph = tg_graph(handle);
  return graph != NULL ? graph->input_count : -1;
}

int get_graph_output_node_number(graph_t handle) {
  const Graph *graph = tg_graph(handle);
  return graph != NULL ? graph->output_count : -1;
}

static Node *end_at(graph_t handle, int number, int is_output) {
  const Graph *graph = tg_graph(handle);
  if (graph == NULL) return NULL;
  if (number >= 0 && number < (is_output ? graph->output_count : graph->input_count))
    return (is_output ? graph->outputs : graph->inputs)[number];
  tg_error("the graph has no %s node %d", is_output ? "output" : "input", number);
  return NULL;
}

node_t get_graph_input_node(graph_t graph, int number) { return tg_node_handle(end_at(graph, number, 0)); }

node_t get_graph_output_node(graph_t graph, int number) { return tg_node_handle(end_at(graph, number, 1)); }

/* Every output of a compiled model is a node with one tensor: of a node with several they count as its further ones. */
static Tensor *tensor_at(graph_t handle, int node, int number, int is_output) {
  const Graph *graph = tg_graph(handle);
  if (graph == NULL) return NULL;
  Node *const *list = is_output ? graph->outputs : graph->inputs;
  const int count = is_output ? graph->output_count : graph->input_count;
  if (graph->is_opaque && node >= 0 && number >= 0) node += number, number = 0;
  if (node >= 0 && node < count && number >= 0 && number < list[node]->output_count) return list[node]->outputs[number];
  tg_error("the graph has no %s tensor %d of node %d", is_output ? "output" : "input", number, node);
  return NULL;
}

tensor_t get_graph_input_tensor(graph_t graph, int node, int number) {
  return tg_tensor_handle(tensor_at(graph, node, number, 0));
}

tensor_t get_graph_output_tensor(graph_t graph, int node, int number) {
  return tg_tensor_handle(tensor_at(graph, node, number, 1));
}

/* A tensor inside the network that is asked for before prerun becomes an output, so that it can be read. */
tensor_t get_graph_tensor(graph_t handle, const char *name) {
  Graph *graph = tg_graph(handle);
  if (graph == NULL || name == NULL) return NULL;
  Tensor *tensor = tg_find_tensor(graph, name);
  if (tensor == NULL) return tg_error("the graph has no tensor '%s'", name), NULL;
  const int is_inside = tensor->kind == TENSOR_TYPE_VAR && !tensor->is_output && tensor->producer != NULL;
  if (is_inside && !graph->is_prepared && !tensor->is_kept && graph->model.data != NULL)
    tensor->is_kept = 1, graph->is_planned = 0;
  return tg_tensor_handle(tensor);
}

node_t get_graph_node(graph_t handle, const char *name) {
  const Graph *graph = tg_graph(handle);
  if (graph == NULL || name == NULL) return NULL;
  Node *node = tg_find_node(graph, name);
  if (node == NULL) tg_error("the graph has no node '%s'", name);
  return tg_node_handle(node);
}

int get_graph_node_num(graph_t handle) {
  const Graph *graph = tg_graph(handle);
  return graph != NULL ? graph->node_count : -1;
}

node_t get_graph_node_by_idx(graph_t handle, int number) {
  const Graph *graph = tg_graph(handle);
  if (graph == NULL || number < 0 || number >= graph->node_count) return NULL;
  return tg_node_handle(graph->nodes[number]);
}

int set_graph_layout(graph_t handle, int layout) {
  Graph *graph = tg_graph(handle);
  if (graph == NULL) return -1;
  return layout == TENGINE_LAYOUT_NCHW ? 0 : tg_error("set_graph_layout: tensors of networks are NCHW");
}

int set_graph_device(graph_t handle, const char *device) {
  Graph *graph = tg_graph(handle);
  if (graph == NULL || device == NULL) return -1;
  if (strcmp(device, graph->device) == 0) return 0;
  if (graph->is_prepared) return tg_error("set_graph_device: the graph is prepared: postrun_graph comes first");
  graph->is_planned = 0;
  return tg_set_device(graph->device, device);
}

int set_graph_attr(graph_t graph, const char *name, const void *value, int size) {
  (void)graph, (void)name, (void)value, (void)size;
  return -1;
}

int get_graph_attr(graph_t graph, const char *name, void *value, int size) {
  (void)graph, (void)name, (void)value, (void)size;
  return -1;
}

int set_graph_thread(graph_t graph, int cluster, int threads) { return (void)graph, (void)cluster, (void)threads, -1; }

int set_graph_thread_mask(graph_t graph, size_t mask) { return (void)graph, (void)mask, -1; }
