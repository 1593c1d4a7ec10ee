/* Graphs built node by node with Tengine's C API: 1x1 convolution, ReLU with a slope, Flatten.
   Arguments: "plain", or "between": the program computes the ReLU itself, whose product with the convolution follows.
   Reads the input (1,2,2,3), the weights (3,2,1,1) and the bias (3), writes what comes out. */

#include <stdio.h>
#include <string.h>

#include "require.h"
#include "tengine_c_api.h"

static int calls[8], events[8];

static int infer_shape(struct custom_kernel_ops *ops, const int *in[], int ins, int *out[], int outs, int layout) {
  calls[0]++;
  memcpy(out[0], in[0], 4 * sizeof(int));
  return ops->kernel_param_size == 4 && ins == 1 && outs == 1 && layout == TENGINE_LAYOUT_NCHW && in[0][4] == 0 ? 0 : -1;
}

static int bind(struct custom_kernel_ops *ops, const struct custom_kernel_tensor *in[], int ins,
                const struct custom_kernel_tensor *out[], int outs) {
  calls[1]++;
  return (void)ops, (void)ins, (void)outs, in[0]->dim_num == 4 && out[0]->element_num == 18 ? 0 : -1;
}

static int prerun(struct custom_kernel_ops *ops, struct custom_kernel_tensor *in[], int ins,
                  struct custom_kernel_tensor *out[], int outs, int dynamic) {
  calls[2]++;
  return (void)ops, (void)in, (void)ins, (void)out, (void)outs, dynamic;
}

static int run(struct custom_kernel_ops *ops, struct custom_kernel_tensor *in[], int ins,
               struct custom_kernel_tensor *out[], int outs) {
  const float slope = *(const float *)ops->kernel_param, *from = in[0]->data;
  float *to = out[0]->data;
  calls[3]++;
  if (ins != 1 || outs != 1 || in[0]->element_size != 4 || in[0]->data_type != TENGINE_DT_FP32) return -1;
  for (int i = 0; i < in[0]->element_num; i++) to[i] = from[i] < 0 ? slope * from[i] : from[i];
  return 0;
}

static int postrun(struct custom_kernel_ops *ops, struct custom_kernel_tensor *in[], int ins,
                   struct custom_kernel_tensor *out[], int outs) {
  calls[4]++;
  return (void)ops, (void)in, (void)ins, (void)out, (void)outs, 0;
}

static void release(struct custom_kernel_ops *ops) { (void)ops, calls[5]++; }

/* Once for each time that the functions are set: when they are removed or replaced, or the graph ends. */
static void check_release(graph_t graph, node_t node, struct custom_kernel_ops ops) {
  struct custom_kernel_ops other = ops;
  node_t flat = get_graph_node(graph, "flat");
  const int before = calls[5];
  other.force = 1;
  ops.op = other.op = NULL;
  ENSURE(set_custom_kernel(node, "CPU", &ops) == 0 && set_custom_kernel(node, "CPU", &ops) == -1);
  ENSURE(remove_custom_kernel(node, "CPU") == 0 && calls[5] == before + 1);
  ENSURE(remove_custom_kernel(node, "CPU") == -1 && calls[5] == before + 1);
  ENSURE(set_custom_kernel(node, "CPU", &ops) == 0 && set_custom_kernel(node, "CPU", &other) == 0);
  ENSURE(calls[5] == before + 2 && set_custom_kernel(flat, "CPU", &other) == 0);
  ENSURE(remove_custom_kernel(node, "CPU") == 0 && calls[5] == before + 2); /* the other node still has it */
  ENSURE(remove_custom_kernel(flat, "CPU") == 0 && calls[5] == before + 3);
  calls[5] = before;
}

static int on_event(graph_t graph, int event, void *argument) {
  events[event]++;
  return (void)graph, *(int *)argument;
}

static tensor_t constant(graph_t graph, const char *name, const int *dims, int rank, float *data, int count) {
  tensor_t tensor = create_graph_tensor(graph, name, TENGINE_DT_FP32);
  node_t node = create_graph_node(graph, name, "Const");
  set_node_output_tensor(node, 0, tensor, TENSOR_TYPE_CONST);
  set_tensor_shape(tensor, dims, rank);
  return set_tensor_buffer(tensor, data, count * (int)sizeof(float)) == 0 ? tensor : NULL;
}

static tensor_t layer(graph_t graph, const char *name, const char *op, tensor_t input) {
  node_t node = create_graph_node(graph, name, op);
  tensor_t tensor = create_graph_tensor(graph, name, TENGINE_DT_FP32);
  set_node_input_tensor(node, 0, input);
  return set_node_output_tensor(node, 0, tensor, TENSOR_TYPE_VAR) == 0 ? tensor : NULL;
}

int main(int count, char **words) {
  float image[12], weights[6], bias[3], slope = 0.5f, slope_read = 0;
  const int dims[] = {1, 2, 2, 3}, weight_dims[] = {3, 2, 1, 1}, bias_dims[] = {3};
  int outputs = 3, inputs = 0, argument = 7, shape[MAX_SHAPE_DIM_NUM];
  struct custom_kernel_ops ops = {"mine", "ReLU", 0, &slope, 4, infer_shape, NULL, bind, prerun, NULL, run, postrun, release};
  REQUIRE(count == 2 && init_tengine() == 0);
  REQUIRE(fread(image, 4, 12, stdin) == 12 && fread(weights, 4, 6, stdin) == 6 && fread(bias, 4, 3, stdin) == 3);
  graph_t graph = create_graph(NULL, NULL, NULL);
  REQUIRE(graph != NULL && set_graph_layout(graph, TENGINE_LAYOUT_NCHW) == 0);
  REQUIRE(get_graph_exec_status(graph) == GRAPH_STAT_CREATED);

  /* nodes are created in another order than they are computed in */
  node_t relu_node = create_graph_node(graph, "relu", "ReLU");
  node_t input_node = create_graph_node(graph, "data", "InputOp");
  tensor_t input = create_graph_tensor(graph, "data", TENGINE_DT_FP32);
  REQUIRE(set_node_output_tensor(input_node, 0, input, TENSOR_TYPE_INPUT) == 0 && set_tensor_shape(input, dims, 4) == 0);
  tensor_t conv = layer(graph, "conv", "Convolution", get_graph_tensor(graph, "data"));
  node_t conv_node = get_graph_node(graph, "conv");
  REQUIRE(set_node_input_tensor(conv_node, 1, constant(graph, "w", weight_dims, 4, weights, 6)) == 0);
  REQUIRE(set_node_input_tensor(conv_node, 2, constant(graph, "b", bias_dims, 1, bias, 3)) == 0);
  REQUIRE(set_node_attr_int(conv_node, "output_channel", &outputs) == 0);
  REQUIRE(get_node_attr_int(conv_node, "kernel_h", &inputs) == 0 && inputs == 1);
  REQUIRE(get_node_attr_int(conv_node, "activation", &inputs) == 0 && inputs == -1);
  tensor_t relu = create_graph_tensor(graph, "relu", TENGINE_DT_FP32);
  REQUIRE(set_node_input_tensor(relu_node, 0, conv) == 0 && set_node_output_tensor(relu_node, 0, relu, TENSOR_TYPE_VAR) == 0);
  REQUIRE(set_node_attr_float(relu_node, "slope", &slope) == 0);
  REQUIRE(get_node_attr_float(relu_node, "slope", &slope_read) == 0 && slope_read == slope);
  REQUIRE(get_node_attr_generic(relu_node, "slope", "float", &slope_read, 4) == 0 && slope_read == slope);
  tensor_t last = relu;
  if (strcmp(words[1], "between") == 0) {
    last = layer(graph, "again", "Eltwise", relu); /* the product with the result of the convolution */
    REQUIRE(set_node_input_tensor(get_graph_node(graph, "again"), 1, conv) == 0);
  }
  REQUIRE(layer(graph, "flat", "Flatten", last) != NULL);
  check_release(graph, relu_node, ops);
  if (strcmp(words[1], "plain") != 0) REQUIRE(set_custom_kernel(relu_node, "CPU", &ops) == 0);
  const char *first[] = {"data"}, *end[] = {"flat"};
  REQUIRE(set_graph_input_node(graph, first, 1) == 0 && set_graph_output_node(graph, end, 1) == 0);
  REQUIRE(set_tensor_buffer(input, image, sizeof image) == 0);
  REQUIRE(set_graph_event_hook(graph, GRAPH_EXEC_DONE, on_event, &argument) == 0);

  for (int time = 0; time < 2; time++) { /* prepare, run and end, twice */
    REQUIRE(prerun_graph(graph) == 0 && get_graph_exec_status(graph) == GRAPH_STAT_READY);
    REQUIRE(run_graph(graph, 0) == 0 && wait_graph(graph, 1) == 0 && wait_graph(graph, 1) == -1);
    tensor_t output = get_graph_output_tensor(graph, 0, 0);
    REQUIRE(get_tensor_shape(output, shape, MAX_SHAPE_DIM_NUM) == 2 && shape[0] == 1 && shape[1] == 18);
    if (time == 1) fwrite(get_tensor_buffer(output), 4, 18, stdout);
    REQUIRE(postrun_graph(graph) == 0 && get_graph_exec_status(graph) == GRAPH_STAT_DONE);
  }
  REQUIRE(events[GRAPH_EXEC_DONE] == 2);
  set_log_level(LOG_INFO);
  dump_graph(graph);
  REQUIRE(destroy_graph(graph) == 0);
  for (int i = 0; i < 6; i++) fprintf(stderr, "%s%d", i ? " " : "calls ", calls[i]);
  release_tengine();
  return 0;
}
