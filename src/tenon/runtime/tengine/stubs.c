/* Functions that have no effect in Tengine either, and those for graphs built node by node, which are not there yet. */

#include "graph.h"

static int not_built(const char *function) { return tg_error("%s: graphs cannot be built node by node yet", function); }

node_t create_graph_node(graph_t graph, const char *name, const char *op) {
  (void)graph, (void)name, (void)op;
  return not_built("create_graph_node"), NULL;
}

tensor_t create_graph_tensor(graph_t graph, const char *name, int data_type) {
  (void)graph, (void)name, (void)data_type;
  return not_built("create_graph_tensor"), NULL;
}

int set_graph_input_node(graph_t graph, const char *nodes[], int count) {
  (void)graph, (void)nodes, (void)count;
  return not_built("set_graph_input_node");
}

int set_graph_output_node(graph_t graph, const char *nodes[], int count) {
  (void)graph, (void)nodes, (void)count;
  return not_built("set_graph_output_node");
}

int set_node_input_tensor(node_t node, int number, tensor_t tensor) {
  (void)node, (void)number, (void)tensor;
  return not_built("set_node_input_tensor");
}

int set_node_output_tensor(node_t node, int number, tensor_t tensor, int tensor_type) {
  (void)node, (void)number, (void)tensor, (void)tensor_type;
  return not_built("set_node_output_tensor");
}

/* ------------------------------------------------------------------------------------------- -1 in Tengine as well */

int add_node_attr(node_t node, const char *name, const char *type, int size) {
  (void)node, (void)name, (void)type, (void)size;
  return -1;
}

int get_node_attr_int(node_t node, const char *name, int *value) { return (void)node, (void)name, (void)value, -1; }

int get_node_attr_float(node_t node, const char *name, float *value) { return (void)node, (void)name, (void)value, -1; }

int get_node_attr_pointer(node_t node, const char *name, void *value) { return (void)node, (void)name, (void)value, -1; }

int get_node_attr_generic(node_t node, const char *name, const char *type, void *value, int size) {
  (void)node, (void)name, (void)type, (void)value, (void)size;
  return -1;
}

int set_node_attr_int(node_t node, const char *name, const int *value) { return (void)node, (void)name, (void)value, -1; }

int set_node_attr_float(node_t node, const char *name, const float *value) {
  return (void)node, (void)name, (void)value, -1;
}

int set_node_attr_pointer(node_t node, const char *name, const void *value) {
  return (void)node, (void)name, (void)value, -1;
}

int set_node_attr_generic(node_t node, const char *name, const char *type, const void *value, int size) {
  (void)node, (void)name, (void)type, (void)value, (void)size;
  return -1;
}

int set_custom_kernel(node_t node, const char *device, struct custom_kernel_ops *ops) {
  (void)node, (void)device, (void)ops;
  return -1;
}

int remove_custom_kernel(node_t node, const char *device) { return (void)node, (void)device, -1; }
