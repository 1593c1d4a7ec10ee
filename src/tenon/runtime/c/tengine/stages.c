/* Stages of a run: the parts of a network that are compiled, with the nodes between them that the program computes. */

#include "stages.h"
#include "custom_kernel.h"
#include "debug.h"
#include "devices.h"
#include "library.h"
#include "messages.h"
#include "order.h"
#include "tensor.h"
#include "tmfile.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int check_tensors(const Graph *graph) {
  if (graph->input_count == 0 || graph->output_count == 0)
    return tg_error("the graph has no %s: set_graph_%s_node comes first", graph->input_count == 0 ? "inputs" : "outputs",
                    graph->input_count == 0 ? "input" : "output");
  for (int i = 0; i < graph->node_count; i++) {
    const Node *node = graph->nodes[i];
    if (node->op == NULL) return tg_error("node '%s' has operator %d, which cannot be written again", node->name, node->type);
    if (node->output_count == 0) return tg_error("node '%s' has no output tensor", node->name);
    for (int j = 0; j < node->input_count; j++) {
      if (node->inputs[j]->producer == NULL && node->inputs[j]->kind != TENSOR_TYPE_CONST)
        return tg_error("node '%s' reads '%s', which no node computes", node->name, node->inputs[j]->name);
      if (node->inputs[j]->kind == TENSOR_TYPE_CONST && graph->model.data == NULL && node->inputs[j]->buffer == NULL)
        return tg_error("the constant '%s' has no data: set_tensor_buffer comes first", node->inputs[j]->name);
    }
  }
  return 0;
}

/* ------------------------------------------------------------------------------------------------------------ ports */

static Tensor *port_tensor(const Graph *graph, const TenonTensor *about, int number, int is_output) {
  Tensor *tensor = tg_find_tensor(graph, about->name);
  if (tensor != NULL || !graph->is_opaque) return tensor;
  return (is_output ? graph->outputs : graph->inputs)[number]->outputs[0];
}

/* Words one after the other, the last of which is empty. */
static int is_one_of(const char *word, const char *words) {
  while (*words != 0 && strcmp(word, words) != 0) words += strlen(words) + 1;
  return *words != 0;
}

/* Results of FullyConnected, and of what keeps their shape, have the dimensions of images where it reads images. */
static int is_image_rank(const Tensor *tensor) {
  static const char keeping[] = "FullyConnected\0Softmax\0ReLU\0Dropout\0Sigmoid\0Logistic\0";
  static const char images[] = "Convolution\0Pooling\0InputOp\0";
  int has_product = 0;
  for (int steps = 0; steps < 16 && tensor->producer != NULL && tensor->producer->op != NULL; steps++) {
    const Node *node = tensor->producer;
    if (is_one_of(node->op->name, images)) return has_product && (node->input_count > 0 || tensor->dim_count == 4);
    if (!is_one_of(node->op->name, keeping) || node->input_count == 0) return 0;
    has_product |= strcmp(node->op->name, keeping) == 0;
    tensor = node->inputs[0];
  }
  return 0;
}

/* Takes what the bundle says of a tensor. */
static void describe(Tensor *tensor, const TenonTensor *about) {
  const int type = tg_data_type(about->type);
  tensor->dim_count = about->rank < MAX_SHAPE_DIM_NUM ? about->rank : MAX_SHAPE_DIM_NUM;
  for (int d = 0; d < tensor->dim_count; d++) tensor->dims[d] = (int)about->shape[d];
  while (about->rank == 2 && tensor->dim_count < 4 && (tensor->dim_count > 2 || is_image_rank(tensor)))
    tensor->dims[tensor->dim_count++] = 1;
  if (type != tensor->data_type) tensor->buffer = NULL;
  tensor->data_type = type;
  if (!about->quantised || tensor->quant_count > 0) return;
  tensor->scales = tn_pool_take(&tensor->graph->pool, sizeof *tensor->scales);
  tensor->zero_points = tn_pool_take(&tensor->graph->pool, sizeof *tensor->zero_points);
  if (tensor->scales == NULL || tensor->zero_points == NULL) return;
  tensor->scales[0] = (float)about->scale;
  tensor->zero_points[0] = about->zero_point;
  tensor->quant_count = 1;
}

/* Whether the shape that the program has set is that of the compiled network. */
static int has_shape(const Tensor *tensor, const TenonTensor *about) {
  int dims[TENON_MAX_RANK];
  for (int d = 0; d < about->rank; d++) dims[d] = (int)about->shape[d];
  return tg_same_but_for_ones(tensor->dims, tensor->dim_count, dims, about->rank);
}

static int map_ports(Graph *graph, Stage *stage) {
  const int inputs = tenon_bundle_input_count(stage->bundle), outputs = tenon_bundle_output_count(stage->bundle);
  stage->ports = tn_pool_take(&graph->stage_pool, (size_t)(inputs + outputs) * sizeof *stage->ports);
  if (stage->ports == NULL) return tg_error("no memory for a graph");
  for (int i = 0; i < inputs + outputs; i++) {
    TenonTensor about;
    const int is_output = i >= inputs, number = is_output ? i - inputs : i;
    if (is_output) tenon_bundle_output(stage->bundle, 0, number, &about);
    else tenon_bundle_input(stage->bundle, 0, number, &about);
    Tensor *tensor = port_tensor(graph, &about, number, is_output);
    if (tensor == NULL) return tg_error("the compiled network has a tensor '%s' that the graph has not", about.name);
    if (!is_output && tensor->is_input && graph->has_other_shapes && !has_shape(tensor, &about))
      return tg_error("'%s' has another shape in the bundle: compile the model for that shape, or open it instead", about.name);
    describe(tensor, &about);
    stage->ports[stage->port_count++] = (StagePort){tensor, number, is_output, (size_t)about.bytes};
  }
  return 0;
}

/* ------------------------------------------------------------------------------------------------------- compiling */

/* Texts for the compiler, which live as long as the stages. */
typedef struct {
  Graph *graph;
  Texts shapes, words;
} Request;

static Request new_request(Graph *graph) {
  return (Request){.graph = graph, .shapes = {.pool = &graph->stage_pool}, .words = {.pool = &graph->stage_pool}};
}

static void add_shape(Request *request, const Tensor *tensor) {
  int64_t extents[TENON_MAX_RANK];
  for (int i = 0; i < tensor->dim_count; i++) extents[i] = tensor->dims[i];
  tn_texts_add(&request->shapes, tn_pool_shape(request->shapes.pool, tensor->name, extents, tensor->dim_count));
}

static void add_words(Request *request, const char *option, const char *text) {
  tn_texts_add(&request->words, option);
  tn_texts_add(&request->words, text != NULL ? tn_pool_text(request->words.pool, text, strlen(text)) : NULL);
}

/* Integers of a quantised tensor stay integers at the inputs and outputs of a stage. */
static void add_type(Request *request, const Tensor *tensor) {
  const int is_byte = tensor->data_type == TENGINE_DT_INT8 || tensor->data_type == TENGINE_DT_UINT8;
  if (!is_byte || tensor->quant_count != 1 || !(tensor->scales[0] > 0)) return;
  add_words(request, "--data-type", tn_pool_format(request->words.pool, "%s=quantized", tensor->name));
}

/* The outputs of the file and what the program asked for beside them. */
static void add_outputs(Request *request) {
  const Graph *graph = request->graph;
  size_t used = 0, room = 2;
  int kept = 0;
  for (int i = 0; i < graph->tensor_count; i++) {
    const Tensor *tensor = graph->tensors[i];
    kept += tensor->is_kept;
    if (tensor->is_output || tensor->is_kept) room += strlen(tensor->name) + 1;
  }
  char *text = kept > 0 ? calloc(room, 1) : NULL;
  if (kept > 0 && text == NULL) request->words.has_failed = 1;
  if (text == NULL) return;
  for (int k = 0; k < 2; k++)
    for (int i = 0; i < graph->tensor_count; i++)
      if (k ? graph->tensors[i]->is_kept : graph->tensors[i]->is_output)
        used += (size_t)snprintf(text + used, room - used, "%s%s", used ? "," : "", graph->tensors[i]->name);
  add_words(request, "--to", text);
  free(text);
}

static int compile(Stage *stage, Request *request, int level, const void *data, size_t size) {
  TenonOpenOptions options = TENON_OPEN_OPTIONS_INIT;
  const Graph *graph = request->graph;
  const int is_cut = tg_has_node_devices(graph);
  if (is_cut) tg_add_device_rules(graph, level, &request->words);
  if (request->shapes.has_failed || request->words.has_failed) return tg_error("no memory for the options of the compiler");
  options.shapes = request->shapes.list;
  options.arguments = request->words.list;
  options.model_name = "model.tmfile";
  options.target = is_cut ? NULL : tg_gpu_target(graph->device);
  if (options.target == NULL && (options.device = tg_device_names(graph, request->words.pool)) == NULL)
    return tg_error("no memory for the names of devices");
  const int by_path = data == NULL;
  const TenonStatus status = by_path ? tenon_bundle_open(graph->path, &options, &stage->bundle)
                                     : tenon_bundle_open_memory(data, size, &options, &stage->bundle);
  return status == TENON_OK ? 0 : tg_error("%s", tenon_last_error());
}

/* The whole file as it is. */
static int open_file(Graph *graph, Stage *stage) {
  Request request = new_request(graph);
  for (int i = 0; i < graph->tensor_count; i++) {
    const Tensor *tensor = graph->tensors[i];
    if (tensor->is_input && graph->has_other_shapes) add_shape(&request, tensor);
    if (!graph->is_opaque && (tensor->is_input || tensor->is_output || tensor->is_kept)) add_type(&request, tensor);
  }
  if (!graph->is_opaque) add_outputs(&request);
  for (int i = 0; i < graph->type_count; i++) add_words(&request, "--data-type", graph->types[i]);
  if (tg_debug("TG_DEBUG_TIME")) tn_texts_add(&request.words, "--profile");
  const void *data = graph->path == NULL ? graph->model.data : NULL;
  return compile(stage, &request, -1, data, graph->model.size);
}

/* The nodes of a level, or all of them, written as a tmfile. */
static int open_part(Graph *graph, Stage *stage, int level) {
  Request request = new_request(graph);
  size_t size = 0;
  uint8_t *model = tg_write_tmfile(graph, level, &size);
  if (model == NULL) return -1;
  stage->model = model; /* the bundle may be used where it lies */
  for (int i = 0; i < graph->node_count; i++) {
    const Node *node = graph->nodes[i];
    if (node->type == CONST_TYPE || node->kernel != NULL || (level >= 0 && node->level != level)) continue;
    for (int j = 0; j < node->output_count; j++) {
      const int is_end = node->type == INPUT_TYPE ? level < 0 : tg_reads_across(graph, node, level);
      if (is_end) add_type(&request, node->outputs[j]);
    }
    for (int j = 0; level >= 0 && j < node->input_count; j++) {
      const Node *before = node->inputs[j]->producer;
      const int is_first = before != NULL && (before->type == INPUT_TYPE || before->level != level || before->kernel != NULL);
      if (is_first && node->inputs[j]->kind != TENSOR_TYPE_CONST) add_type(&request, node->inputs[j]);
    }
  }
  if (tg_debug("TG_DEBUG_TIME")) tn_texts_add(&request.words, "--profile");
  return compile(stage, &request, level, model, size);
}

static Stage *add_stage(Graph *graph, Node *kernel) {
  Stage *stage = &graph->stages[graph->stage_count++];
  stage->kernel = kernel;
  return stage;
}

static int add_level(Graph *graph, int level, int has_kernels) {
  int nodes = 0;
  for (int i = 0; i < graph->node_count; i++) {
    const Node *node = graph->nodes[i];
    nodes += node->type != CONST_TYPE && node->type != INPUT_TYPE && node->kernel == NULL && node->level == level;
  }
  if (nodes > 0) {
    Stage *stage = add_stage(graph, NULL);
    if (open_part(graph, stage, has_kernels ? level : -1) != 0 || map_ports(graph, stage) != 0) return -1;
  }
  for (int i = 0; i < graph->node_count; i++) {
    Node *node = graph->order[i];
    if (node->kernel != NULL && node->level == level && tg_prepare_kernel(graph, add_stage(graph, node)) != 0) return -1;
  }
  return 0;
}

int tg_plan_stages(Graph *graph) {
  int levels = 0, kernels = 0;
  if (graph->is_planned) return 0;
  tg_end_stages(graph);
  for (int i = 0; tg_debug("TG_DEBUG_DATA") && i < graph->tensor_count; i++)
    graph->tensors[i]->is_kept |= graph->tensors[i]->kind == TENSOR_TYPE_VAR && !graph->tensors[i]->is_output;
  for (int i = 0; i < graph->node_count; i++) kernels += graph->nodes[i]->kernel != NULL;
  graph->stages = tn_pool_take(&graph->stage_pool, (size_t)(2 * kernels + 2) * sizeof *graph->stages);
  if (graph->stages == NULL) return tg_error("no memory for a graph");
  int status = 0;
  if (!graph->is_changed && kernels == 0) {
    Stage *stage = add_stage(graph, NULL);
    status = open_file(graph, stage) == 0 ? map_ports(graph, stage) : -1;
  } else {
    status = check_tensors(graph) == 0 ? tg_sort_nodes(graph) : -1;
    for (int i = 0; status == 0 && i < graph->node_count; i++)
      if (graph->nodes[i]->level >= levels) levels = graph->nodes[i]->level + 1;
    for (int level = 0; status == 0 && level < levels; level++) status = add_level(graph, level, kernels > 0);
  }
  if (status == 0) graph->is_planned = 1;
  else tg_end_stages(graph);
  return status;
}

void tg_end_stages(Graph *graph) {
  for (int i = 0; i < graph->stage_count; i++) {
    Stage *stage = &graph->stages[i];
    if (stage->kernel != NULL && graph->is_prepared) tg_postrun_kernel(stage);
    if (stage->engine != NULL) tenon_engine_destroy(stage->engine);
    if (stage->bundle != NULL) tenon_bundle_close(stage->bundle);
    free(stage->model);
  }
  for (int i = 0; i < graph->tensor_count; i++) graph->tensors[i]->memory = NULL;
  graph->stage_count = graph->is_planned = graph->is_prepared = graph->has_run = 0;
  graph->stages = NULL;
  tn_pool_release(&graph->stage_pool);
}

/* ----------------------------------------------------------------------------------------------- models of all kinds */

static void describe_port(const TenonBundle *bundle, int i, TenonTensor *about) {
  const int inputs = tenon_bundle_input_count(bundle);
  if (i < inputs) tenon_bundle_input(bundle, 0, i, about);
  else tenon_bundle_output(bundle, 0, i - inputs, about);
}

/* Types that Tengine lacks are converted: as in its own tools, f64 and bool to FP32, other integers to INT32. */
static int list_types(Graph *graph, const TenonBundle *bundle) {
  const int count = tenon_bundle_input_count(bundle) + tenon_bundle_output_count(bundle);
  graph->types = tn_pool_take(&graph->pool, (size_t)count * sizeof *graph->types);
  for (int i = 0; graph->types != NULL && i < count; i++) {
    TenonTensor about;
    describe_port(bundle, i, &about);
    const int is_real = about.type == TENON_F64 || about.type == TENON_BF16 || about.type == TENON_BOOL;
    if (tg_data_type(about.type) >= 0 || about.type == TENON_OTHER_TYPE) continue;
    char *text = tn_pool_format(&graph->pool, "%s=%s", about.name, is_real ? "float32" : "int32");
    if (text == NULL) return -1;
    graph->types[graph->type_count++] = text;
  }
  return graph->types != NULL ? 0 : -1;
}

static int open_with_known_types(Graph *graph, Stage *stage) {
  if (open_file(graph, stage) != 0) return -1;
  if (list_types(graph, stage->bundle) != 0) return tg_error("no memory for a graph");
  if (graph->type_count == 0) return 0;
  tenon_bundle_close(stage->bundle);
  stage->bundle = NULL;
  return open_file(graph, stage);
}

/* A model that is no tmfile is compiled at once, to know its inputs and outputs. */
int tg_open_opaque(Graph *graph) {
  graph->stages = tn_pool_take(&graph->stage_pool, sizeof *graph->stages);
  if (graph->stages == NULL) return tg_error("no memory for a graph");
  Stage *stage = add_stage(graph, NULL);
  if (open_with_known_types(graph, stage) != 0) return -1;
  const int inputs = tenon_bundle_input_count(stage->bundle), count = inputs + tenon_bundle_output_count(stage->bundle);
  Node **list = tn_pool_take(&graph->pool, (size_t)count * sizeof *list);
  if (list == NULL) return tg_error("no memory for a graph");
  for (int i = 0; i < count; i++) {
    TenonTensor about;
    describe_port(stage->bundle, i, &about);
    const size_t length = strlen(about.name);
    Tensor *tensor = tg_new_tensor(graph, about.name, length, tg_data_type(about.type));
    Node *node = tensor != NULL ? tg_new_node(graph, about.name, length, i < inputs ? INPUT_TYPE : -1) : NULL;
    if (node == NULL || tg_connect(graph, &node->outputs, &node->output_count, 0, tensor) != 0)
      return tg_error("no memory for a graph");
    tensor->producer = node;
    tensor->kind = i < inputs ? TENSOR_TYPE_INPUT : TENSOR_TYPE_VAR;
    list[i] = node;
  }
  graph->inputs = list, graph->input_count = inputs;
  graph->outputs = list + inputs, graph->output_count = count - inputs;
  graph->is_planned = 1;
  return map_ports(graph, stage);
}
