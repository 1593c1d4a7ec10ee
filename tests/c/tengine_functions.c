/* Functions of Tengine's C API that programs seldom call, on a model given as the argument: queries, copies of data, and
   those that do nothing in Tengine. */

#include <stdlib.h>
#include <string.h>

#include "require.h"
#include "tengine/c_api.h"

static int printed;

static void count(const char *text) { printed += text != NULL; }

static int check_constants(graph_t graph, node_t node) {
  int value = 7;
  REQUIRE(get_tengine_hcl_version() == NULL && request_tengine_version("0.9") == 1);
  REQUIRE(get_tengine_errno() == -1 && clr_tengine_errno() == -1);
  REQUIRE(get_cluster_affinity_mask(TENGINE_CLUSTER_BIG) == (size_t)-1);
  REQUIRE(strcmp(get_default_device(), "CPU") == 0 && set_default_device("CPU") == -1);
  REQUIRE(get_graph_attr(graph, "x", &value, 4) == -1 && set_graph_attr(graph, "x", &value, 4) == -1);
  REQUIRE(set_graph_thread(graph, 0, 1) == -1 && set_graph_thread_mask(graph, 1) == -1);
  REQUIRE(add_node_attr(node, "x", "int", 4) == -1);
  REQUIRE(get_node_attr_pointer(node, "x", &value) == -1 && set_node_attr_pointer(node, "x", &value) == -1);
  REQUIRE(value == 7);
  return 0;
}

static int check_contexts(void) {
  int value = 7;
  context_t context = create_context("mine", 0);
  REQUIRE(context != NULL && get_context_device_number(context) == 1 && get_context_device_number(NULL) == 0);
  REQUIRE(set_context_attr(context, "x", &value, 4) == -1 && get_context_attr(context, "x", &value, 4) == -1 && value == 7);
  REQUIRE(remove_context_device(context, "GPU") == -1 && remove_context_device(context, "CPU") == 0);
  REQUIRE(add_context_device(context, "CPU") == 0 && get_context_device_number(context) == 1);
  destroy_context(context);
  return 0;
}

static int check_nodes(graph_t graph) {
  node_t first = get_graph_input_node(graph, 0), last = get_graph_output_node(graph, 0);
  REQUIRE(get_graph_input_node_number(graph) == 1 && get_graph_output_node_number(graph) == 1);
  REQUIRE(first != NULL && last != NULL && first != last && get_graph_input_node(graph, 1) == NULL);
  REQUIRE(get_graph_node(graph, get_node_name(first)) == first && strcmp(get_node_device(first), "CPU") == 0);
  REQUIRE(set_node_device(first, "CPU") == 0 && set_node_device(first, "no device") == -1);
  REQUIRE(set_node_device(first, NULL) == -1 && set_node_device(NULL, "CPU") == -1);
  REQUIRE(get_node_input_number(first) == 0 && get_node_output_number(first) == 1);
  REQUIRE(get_node_output_tensor(first, 0) == get_graph_input_tensor(graph, 0, 0));
  REQUIRE(get_node_output_number(last) == 1 && get_node_output_tensor(last, 0) == get_graph_output_tensor(graph, 0, 0));
  REQUIRE(strcmp(get_node_op(first), "InputOp") == 0 && get_graph_node_num(graph) >= 2);
  release_graph_node(first);
  REQUIRE(get_node_name(first) != NULL); /* a node is its graph's */
  return check_constants(graph, first);
}

static int check_tensors(graph_t graph) {
  static float values[64], again[64];
  const float scale = 0.5F;
  float scale_read = 0;
  const int zero = 3;
  int zero_read = 0;
  tensor_t input = get_graph_input_tensor(graph, 0, 0);
  REQUIRE(get_tensor_layout(input) == TENGINE_LAYOUT_NCHW && set_tensor_layout(input, TENGINE_LAYOUT_NCHW) == 0);
  REQUIRE(set_tensor_layout(input, TENGINE_LAYOUT_NHWC) == 0 && get_tensor_layout(input) == TENGINE_LAYOUT_NHWC);
  REQUIRE(set_tensor_layout(input, 7) == -1 && get_tensor_layout(input) == TENGINE_LAYOUT_NHWC);
  REQUIRE(set_tensor_layout(input, TENGINE_LAYOUT_NCHW) == 0 && set_graph_layout(graph, TENGINE_LAYOUT_NCHW) == 0);
  REQUIRE(set_tensor_data(input, values, sizeof values) == -1); /* it has no memory before prerun */
  REQUIRE(prerun_graph(graph) == 0 && get_graph_exec_status(graph) == GRAPH_STAT_READY);
  for (int i = 0; i < 64; i++) values[i] = (float)i;
  REQUIRE(set_tensor_data(input, values, sizeof values) == 0 && set_tensor_data(input, values, 8) == -1);
  REQUIRE(get_tensor_data(input, again, sizeof again) == 0 && memcmp(values, again, sizeof values) == 0);
  REQUIRE(run_graph(graph, 1) == 0);
  REQUIRE(set_tensor_quant_param(input, &scale, &zero, 1) == 0);
  REQUIRE(get_tensor_quant_param(input, &scale_read, &zero_read, 1) == 1 && scale_read == scale && zero_read == zero);
  REQUIRE(postrun_graph(graph) == 0);
  release_graph_tensor(input);
  return get_tensor_buffer_size(input) == (int)sizeof values ? 0 : 1;
}

int main(int count_of_words, char **words) {
  REQUIRE(count_of_words == 2 && init_tengine() == 0);
  set_log_output(count);
  graph_t graph = create_graph(NULL, "tengine", words[1]);
  REQUIRE(graph != NULL && printed == 0);
  REQUIRE(check_nodes(graph) == 0 && check_contexts() == 0 && check_tensors(graph) == 0);
  REQUIRE(printed > 0); /* of what was refused */
  const int before = printed;
  set_log_level(LOG_EMERG);
  REQUIRE(run_graph(NULL, 1) == -1 && printed == before);
  REQUIRE(destroy_graph(graph) == 0);
  release_tengine();
  return 0;
}
