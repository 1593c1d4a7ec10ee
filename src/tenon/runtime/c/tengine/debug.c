/* Output about a graph: dump_graph, and the variables TG_DEBUG_*. */

#include "debug.h"
#include "messages.h"
#include "tensor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int tg_debug(const char *variable) {
  const char *value = getenv(variable);
  return value != NULL && *value != 0 && strcmp(value, "0") != 0;
}

/* ------------------------------------------------------------------------------------------------------------- dump */

static const char *type_name(int data_type) {
  static const char names[][7] = {"fp32", "fp16", "int8", "uint8", "int32", "int16"};
  return data_type >= 0 && data_type < 6 ? names[data_type] : "unknown";
}

static const char *kind_name(int kind) {
  static const char names[][8] = {"unknown", "var", "const", "input", "dep"};
  return kind >= 0 && kind < 5 ? names[kind] : "unknown";
}

static void dump_tensor(const Tensor *tensor, int number, int id, enum log_level level) {
  char shape[128] = "";
  size_t used = 0;
  for (int i = 0; i < tensor->dim_count; i++)
    used += (size_t)snprintf(shape + used, sizeof shape - used, "%s%d", i ? "," : "", tensor->dims[i]);
  tg_log(level, "\t    %d: [id: %d] %s type: %s/%s shape: [%s]", number, id, tensor->name, type_name(tensor->data_type),
         kind_name(tensor->kind), shape);
  if (tensor->producer != NULL) tg_log(level, " from node: %d", tensor->producer->index);
  if (tensor->consumer_count > 0) tg_log(level, " (consumer: %d)", tensor->consumer_count);
  tg_log(level, "\n");
}

static int id_of(const Graph *graph, const Tensor *tensor) {
  int i = 0;
  while (i < graph->tensor_count && graph->tensors[i] != tensor) i++;
  return i;
}

static void dump_node(const Graph *graph, const Node *node, enum log_level level) {
  tg_log(level, "\nnode: %d op: %s name: %s\n", node->index, node->op != NULL ? node->op->name : "Output", node->name);
  if (node->input_count > 0) tg_log(level, "\tinput tensors: %d\n", node->input_count);
  for (int i = 0; i < node->input_count; i++) dump_tensor(node->inputs[i], i, id_of(graph, node->inputs[i]), level);
  if (node->output_count > 0) tg_log(level, "\toutput tensors: %d\n", node->output_count);
  for (int i = 0; i < node->output_count; i++) dump_tensor(node->outputs[i], i, id_of(graph, node->outputs[i]), level);
}

void tg_dump(const Graph *graph, enum log_level level) {
  tg_log(level, "graph node_num %d tensor_num: %d  subgraph_num: %d\n", graph->node_count, graph->tensor_count,
         graph->stage_count);
  tg_log(level, "graph layout: NCHW model layout: NCHW model_format: %s\n", graph->is_opaque ? "tenon" : "tengine");
  for (int i = 0; i < graph->node_count; i++) dump_node(graph, graph->nodes[i], level);
  tg_log(level, "\ngraph inputs: %d\n", graph->input_count);
  for (int i = 0; i < graph->input_count; i++) tg_log(level, "\t%s\n", graph->inputs[i]->name);
  tg_log(level, "graph outputs: %d\n", graph->output_count);
  for (int i = 0; i < graph->output_count; i++) tg_log(level, "\t%s\n", graph->outputs[i]->name);
}

void dump_graph(graph_t handle) {
  const Graph *graph = tg_graph(handle);
  if (graph != NULL) tg_dump(graph, LOG_INFO);
}

/* ------------------------------------------------------------------------------------------------------------ times */

static void print_steps(const Stage *stage) {
  const int count = tenon_bundle_step_count(stage->bundle);
  uint64_t *times = calloc((size_t)count + 1, sizeof *times), sum = 0;
  if (times == NULL || tenon_engine_profile(stage->engine, times, (size_t)count) != TENON_OK) {
    free(times);
    return;
  }
  for (int i = 0; i < count; i++) sum += times[i];
  for (int i = 0; i < count; i++) {
    TenonStep step;
    if (tenon_bundle_step(stage->bundle, i, &step) == TENON_OK)
      printf("%4d [%5.2f%% : %6.3f ms] %13s %s\n", i, sum ? 100.0 * (double)times[i] / (double)sum : 0.0,
             (double)times[i] * 1e-6, step.op, step.layer);
  }
  free(times);
}

void tg_print_times(const Graph *graph) {
  for (int i = 0; i < graph->stage_count; i++)
    if (graph->stages[i].kernel == NULL) print_steps(&graph->stages[i]);
  const double total = (double)graph->run_time * 1e-6, runs = graph->run_count ? (double)graph->run_count : 1;
  printf("total time: %.2f ms. avg time: %.2f ms.\n", total, total / runs);
  fflush(stdout);
}

/* --------------------------------------------------------------------------------------------------- TG_DEBUG_DATA */

static double element(const Tensor *tensor, const void *data, int64_t i) {
  const double scale = tensor->quant_count == 1 ? tensor->scales[0] : 1;
  const int zero = tensor->quant_count == 1 ? tensor->zero_points[0] : 0;
  if (tensor->data_type == TENGINE_DT_FP32) return ((const float *)data)[i];
  if (tensor->data_type == TENGINE_DT_INT8) return scale * (((const int8_t *)data)[i] - zero);
  if (tensor->data_type == TENGINE_DT_UINT8) return scale * (((const uint8_t *)data)[i] - zero);
  if (tensor->data_type == TENGINE_DT_INT16) return scale * (((const int16_t *)data)[i] - zero);
  return tensor->data_type == TENGINE_DT_INT32 ? ((const int32_t *)data)[i] : 0;
}

/* A line for each row of the last axis. */
static void write_blob(const Tensor *tensor, const Node *node, const char *what) {
  char path[1024], name[256];
  const char *folder = getenv("TG_DEBUG_DUMP_DIR");
  const void *data = tg_data(tensor);
  if (data == NULL || tg_bytes(tensor) == 0) return;
  snprintf(name, sizeof name, "%s", node->name);
  for (char *at = name; *at; at++)
    if (strchr("/\\:*?\"<>| ", *at) != NULL) *at = '-';
  if (folder == NULL || !*folder) folder = "./output/";
  const char *separator = strchr("/\\", folder[strlen(folder) - 1]) != NULL ? "" : "/";
  snprintf(path, sizeof path, "%s%s%s_%s_blob_data.txt", folder, separator, name, what);
  FILE *file = fopen(path, "wb");
  if (file == NULL) {
    tg_error("%s cannot be written: create its folder first", path);
    return;
  }
  const int64_t count = tg_bytes(tensor) / tg_element_bytes(tensor->data_type);
  const int row = tensor->dim_count > 0 ? tensor->dims[tensor->dim_count - 1] : 1;
  fprintf(file, "Shape is {");
  for (int i = 0; i < tensor->dim_count; i++) fprintf(file, "%s%d", i ? " " : "", tensor->dims[i]);
  fprintf(file, "}, data type is %s\n", type_name(tensor->data_type));
  for (int64_t i = 0; i < count; i++) fprintf(file, "%.6f%s", element(tensor, data, i), (i + 1) % row ? " " : "\n");
  fclose(file);
}

void tg_write_blobs(const Graph *graph) {
  for (int i = 0; i < graph->node_count; i++) {
    const Node *node = graph->nodes[i];
    if (node->type == CONST_TYPE || node->type == INPUT_TYPE) continue;
    if (node->input_count > 0) write_blob(node->inputs[0], node, "in");
    if (node->output_count > 0) write_blob(node->outputs[0], node, "out");
  }
}
