/* Nodes: creating and connecting them, and what they are. */

#include "graph.h"
#include "messages.h"
#include "tensor.h"

#include <string.h>

static int refuse_change(const Graph *graph, const char *function) {
  if (graph->is_opaque) return tg_error("%s: a compiled model cannot be changed", function);
  if (graph->is_prepared) return tg_error("%s: the graph is prepared: postrun_graph comes first", function);
  return 0;
}

node_t create_graph_node(graph_t handle, const char *name, const char *op) {
  Graph *graph = tg_graph(handle);
  if (graph == NULL) return NULL;
  if (name == NULL || op == NULL) return tg_error("create_graph_node: the name or the operator is NULL"), NULL;
  if (refuse_change(graph, "create_graph_node") != 0) return NULL;
  if (tg_find_node(graph, name) != NULL) return tg_error("the graph has a node '%s' already", name), NULL;
  const Operator *found = tg_operator_named(op);
  if (found == NULL) return tg_error("there is no operator '%s'", op), NULL;
  Node *node = tg_new_node(graph, name, strlen(name), found->type);
  if (node == NULL) return tg_error("no memory for node '%s'", name), NULL;
  node->op = found;
  if (tg_set_defaults(node) != 0) return tg_error("no memory for node '%s'", name), NULL;
  graph->is_changed = 1;
  graph->is_planned = 0;
  return tg_node_handle(node);
}

tensor_t create_graph_tensor(graph_t handle, const char *name, int data_type) {
  Graph *graph = tg_graph(handle);
  if (graph == NULL) return NULL;
  if (tg_element_bytes(data_type) == 0) return tg_error("create_graph_tensor: there is no data type %d", data_type), NULL;
  if (refuse_change(graph, "create_graph_tensor") != 0) return NULL;
  if (name != NULL && tg_find_tensor(graph, name) != NULL)
    return tg_error("the graph has a tensor '%s' already", name), NULL;
  Tensor *tensor = tg_new_tensor(graph, name, name != NULL ? strlen(name) : 0, data_type);
  if (tensor == NULL) return tg_error("no memory for a tensor"), NULL;
  graph->is_changed = 1;
  return tg_tensor_handle(tensor);
}

static int connect(node_t node_handle, int number, tensor_t tensor_handle, int is_output) {
  Node *node = tg_node(node_handle);
  Tensor *tensor = node != NULL ? tg_tensor(tensor_handle) : NULL;
  if (tensor == NULL) return -1;
  Graph *graph = node->graph;
  if (tensor->graph != graph) return tg_error("tensor '%s' and node '%s' are of different graphs", tensor->name, node->name);
  if (refuse_change(graph, is_output ? "set_node_output_tensor" : "set_node_input_tensor") != 0) return -1;
  int *count = is_output ? &node->output_count : &node->input_count;
  if (number < 0 || number > *count)
    return tg_error("node '%s' has %d %s tensors: number %d leaves a gap", node->name, *count,
                    is_output ? "output" : "input", number);
  if (is_output && tensor->producer != NULL && tensor->producer != node)
    return tg_error("tensor '%s' is the result of node '%s' already", tensor->name, tensor->producer->name);
  if (tg_connect(graph, is_output ? &node->outputs : &node->inputs, count, number, tensor) != 0)
    return tg_error("no memory for node '%s'", node->name);
  if (is_output) tensor->producer = node;
  else tensor->consumer_count++;
  graph->is_changed = 1;
  graph->is_planned = 0;
  return 0;
}

int set_node_input_tensor(node_t node, int number, tensor_t tensor) { return connect(node, number, tensor, 0); }

int set_node_output_tensor(node_t node, int number, tensor_t handle, int tensor_type) {
  if (tensor_type < TENSOR_TYPE_VAR || tensor_type > TENSOR_TYPE_DEP)
    return tg_error("set_node_output_tensor: there is no tensor type %d", tensor_type);
  if (connect(node, number, handle, 1) != 0) return -1;
  tg_tensor(handle)->kind = tensor_type;
  return 0;
}

void release_graph_node(node_t node) { (void)node; }

/* ---------------------------------------------------------------------------------------------------------- queries */

const char *get_node_name(node_t handle) {
  const Node *node = tg_node(handle);
  return node != NULL ? node->name : NULL;
}

const char *get_node_op(node_t handle) {
  const Node *node = tg_node(handle);
  if (node == NULL) return NULL;
  return node->op != NULL ? node->op->name : node->graph->is_opaque ? "Output" : "Generic";
}

const char *get_node_device(node_t handle) {
  const Node *node = tg_node(handle);
  if (node == NULL) return NULL;
  return node->device[0] != 0 ? node->device : node->graph->device;
}

int set_node_device(node_t handle, const char *device) {
  Node *node = tg_node(handle);
  if (node == NULL || device == NULL) return -1;
  Graph *graph = node->graph;
  if (strcmp(device, get_node_device(handle)) == 0) return 0;
  if (graph->is_prepared) return tg_error("set_node_device: the graph is prepared: postrun_graph comes first");
  graph->is_planned = 0;
  return tg_set_device(node->device, device);
}

static tensor_t tensor_of(node_t handle, int number, int is_output) {
  const Node *node = tg_node(handle);
  if (node == NULL) return NULL;
  const int count = is_output ? node->output_count : node->input_count;
  if (number >= 0 && number < count) return tg_tensor_handle((is_output ? node->outputs : node->inputs)[number]);
  tg_error("node '%s' has no %s tensor %d", node->name, is_output ? "output" : "input", number);
  return NULL;
}

tensor_t get_node_input_tensor(node_t node, int number) { return tensor_of(node, number, 0); }

tensor_t get_node_output_tensor(node_t node, int number) { return tensor_of(node, number, 1); }

int get_node_input_number(node_t handle) {
  const Node *node = tg_node(handle);
  return node != NULL ? node->input_count : -1;
}

int get_node_output_number(node_t handle) {
  const Node *node = tg_node(handle);
  return node != NULL ? node->output_count : -1;
}
