/* Graphs: create them from models, prepare, run. */

#include "graph.h"
#include "internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHAPE_TEXT = 320 };

Graph *tg_graph(graph_t handle) { return tn_handle_object(GRAPH_HANDLE, handle); }

/* ---------------------------------------------------------------------------------------------------------- opening */

static void write_shape(const Tensor *tensor, char text[SHAPE_TEXT]) {
  size_t used = (size_t)snprintf(text, SHAPE_TEXT, "%s=", tensor->about.name);
  for (int i = 0; i < tensor->dim_count && used < SHAPE_TEXT; i++)
    used += (size_t)snprintf(text + used, SHAPE_TEXT - used, "%s%d", i ? "," : "", tensor->dims[i]);
}

/* With the shapes that the program has set, if there are others than the model's. */
static TenonStatus open_bundle(const Graph *graph, TenonBundle **bundle) {
  TenonOpenOptions options = TENON_OPEN_OPTIONS_INIT;
  char texts[16][SHAPE_TEXT];
  const char *shapes[17] = {NULL};
  for (int i = 0; graph->has_other_shapes && i < graph->input_count && i < 16; i++) {
    write_shape(&graph->tensors[i], texts[i]);
    shapes[i] = texts[i];
  }
  options.shapes = shapes;
  if (graph->content == NULL) return tenon_bundle_open(graph->path, &options, bundle);
  options.model_name = "model.tmfile";
  return tenon_bundle_open_memory(graph->content, graph->size, &options, bundle);
}

void tg_describe(Graph *graph) {
  for (int i = 0; i < graph->input_count + graph->output_count; i++) {
    Tensor *tensor = &graph->tensors[i];
    if (tensor->is_output) tenon_bundle_output(graph->bundle, 0, tensor->number, &tensor->about);
    else tenon_bundle_input(graph->bundle, 0, tensor->number, &tensor->about);
    tensor->dim_count = tensor->about.rank < MAX_SHAPE_DIM_NUM ? tensor->about.rank : MAX_SHAPE_DIM_NUM;
    for (int d = 0; d < tensor->dim_count; d++) tensor->dims[d] = (int)tensor->about.shape[d];
  }
}

static int add_tensors(Graph *graph) {
  graph->input_count = tenon_bundle_input_count(graph->bundle);
  graph->output_count = tenon_bundle_output_count(graph->bundle);
  const int count = graph->input_count + graph->output_count;
  if ((graph->tensors = calloc((size_t)count + 1, sizeof *graph->tensors)) == NULL) return -1;
  for (int i = 0; i < count; i++) {
    Tensor *tensor = &graph->tensors[i];
    tensor->graph = graph;
    tensor->is_output = i >= graph->input_count;
    tensor->number = tensor->is_output ? i - graph->input_count : i;
    tensor->handle = tn_handle_new(TENSOR_HANDLE, tensor);
    tensor->node = tn_handle_new(NODE_HANDLE, tensor);
    if (tensor->handle == NULL || tensor->node == NULL) return -1;
  }
  tg_describe(graph);
  return 0;
}

static void end(Graph *graph) {
  if (graph->engine != NULL) tenon_engine_destroy(graph->engine);
  if (graph->bundle != NULL) tenon_bundle_close(graph->bundle);
  for (int i = 0; graph->tensors != NULL && i < graph->input_count + graph->output_count; i++) {
    if (graph->tensors[i].handle != NULL) tn_handle_end(graph->tensors[i].handle);
    if (graph->tensors[i].node != NULL) tn_handle_end(graph->tensors[i].node);
  }
  if (graph->handle != NULL) tn_handle_end(graph->handle);
  free(graph->tensors);
  free(graph->content);
  free(graph->path);
  free(graph);
}

static int load_model(Graph *graph) {
  if (open_bundle(graph, &graph->bundle) != TENON_OK) return tg_error("%s", tenon_last_error());
  return add_tensors(graph) == 0 ? 0 : tg_error("no memory for a graph");
}

static void *copied(const void *from, size_t size) {
  void *copy = malloc(size + 1);
  if (copy != NULL) memcpy(copy, from, size), ((char *)copy)[size] = 0;
  return copy;
}

graph_t create_graph(context_t context, const char *model_format, const char *file_name, ...) {
  int size = 0;
  if (context != NULL && tn_handle_object(CONTEXT_HANDLE, context) == NULL) return NULL;
  if (model_format == NULL) {
    tg_error("an empty graph cannot be filled node by node yet: give a model");
    return NULL;
  }
  if (file_name == NULL) {
    tg_error("create_graph: the file name is NULL");
    return NULL;
  }
  const int in_memory = strstr(model_format, ":m") != NULL;
  if (in_memory) {
    va_list arguments;
    va_start(arguments, file_name);
    size = va_arg(arguments, int);
    va_end(arguments);
    if (size <= 0) {
      tg_error("create_graph: the size of the model is %d", size);
      return NULL;
    }
  }
  Graph *graph = calloc(1, sizeof *graph);
  if (graph == NULL) return NULL;
  graph->size = (size_t)size;
  if (in_memory) graph->content = copied(file_name, graph->size);
  else graph->path = copied(file_name, strlen(file_name));
  if ((graph->content != NULL || graph->path != NULL) && load_model(graph) == 0 &&
      (graph->handle = tn_handle_new(GRAPH_HANDLE, graph)) != NULL)
    return graph->handle;
  end(graph);
  return NULL;
}

int destroy_graph(graph_t handle) {
  Graph *graph = tg_graph(handle);
  if (graph == NULL) return -1;
  end(graph);
  return 0;
}

/* ------------------------------------------------------------------------------------------------------------- runs */

/* Opens the model again if the program has set other shapes. */
static int apply_shapes(Graph *graph) {
  TenonBundle *bundle;
  if (!graph->has_other_shapes) return 0;
  if (open_bundle(graph, &bundle) != TENON_OK) return tg_error("%s", tenon_last_error());
  tenon_bundle_close(graph->bundle);
  graph->bundle = bundle;
  graph->has_other_shapes = 0;
  tg_describe(graph);
  return 0;
}

/* The bits of the mask that are processors of this process. */
static int create_engine(Graph *graph, const struct options *options) {
  int32_t processors[64];
  Processors own;
  TenonEngineOptions wanted = TENON_ENGINE_OPTIONS_INIT;
  const int most = tenon_bundle_max_threads(graph->bundle);
  wanted.threads = options->num_thread < 1 ? 1 : options->num_thread < most ? options->num_thread : most;
  if (tn_can_pin() && tn_own_processors(&own)) {
    int left_out = 0;
    for (int i = 0; i < 64; i++) {
      const int chosen = options->affinity >> i & 1;
      if (own.present[i] && chosen) processors[wanted.processor_count++] = i;
      left_out |= own.present[i] && !chosen;
    }
    if (!left_out) wanted.processor_count = 0; /* all of them: no restriction */
    if (wanted.processor_count > 0) wanted.processors = processors;
    else if (options->cluster == TENGINE_CLUSTER_BIG) wanted.cores = TENON_BIG_CORES;
    else if (options->cluster == TENGINE_CLUSTER_LITTLE) wanted.cores = TENON_LITTLE_CORES;
  }
  if (tenon_engine_create(graph->bundle, &wanted, &graph->engine) == TENON_OK) return 0;
  return tg_error("%s", tenon_last_error());
}

static int bind_buffers(Graph *graph) {
  for (int i = 0; i < graph->input_count + graph->output_count; i++) {
    const Tensor *tensor = &graph->tensors[i];
    const size_t bytes = (size_t)tensor->about.bytes;
    if (tensor->buffer == NULL) continue;
    const TenonStatus status = tensor->is_output
                                   ? tenon_engine_bind_output(graph->engine, tensor->number, tensor->buffer, bytes)
                                   : tenon_engine_bind_input(graph->engine, tensor->number, tensor->buffer, bytes);
    if (status != TENON_OK) return tg_error("%s", tenon_last_error());
  }
  return 0;
}

int prerun_graph_multithread(graph_t handle, struct options options) {
  Graph *graph = tg_graph(handle);
  if (graph == NULL) return -1;
  if (graph->engine != NULL) return tg_error("the graph is prepared already: postrun_graph comes first");
  if (apply_shapes(graph) != 0 || create_engine(graph, &options) != 0) return -1;
  return 0;
}

int prerun_graph(graph_t graph) {
  const struct options options = {1, TENGINE_CLUSTER_BIG, -1, (uint64_t)-1};
  return prerun_graph_multithread(graph, options);
}

/* Also with `block` 0 the run is over at the end of the call, as on Tengine's CPU. */
int run_graph(graph_t handle, int block) {
  (void)block;
  Graph *graph = tg_graph(handle);
  if (graph == NULL) return -1;
  if (graph->engine == NULL) return tg_error("run_graph: the graph is not prepared: prerun_graph comes first");
  if (bind_buffers(graph) != 0) return -1;
  if (tenon_engine_run(graph->engine) != TENON_OK) return tg_error("%s", tenon_last_error());
  graph->has_run = 1;
  return 0;
}

int wait_graph(graph_t graph, int try_wait) { return (void)graph, (void)try_wait, -1; }

int postrun_graph(graph_t handle) {
  Graph *graph = tg_graph(handle);
  if (graph == NULL) return -1;
  if (graph->engine == NULL) return tg_error("postrun_graph: the graph is not prepared");
  tenon_engine_destroy(graph->engine);
  graph->engine = NULL;
  graph->has_run = 0;
  return 0;
}

/* ---------------------------------------------------------------------------------------------------------- queries */

int get_graph_input_node_number(graph_t handle) {
  const Graph *graph = tg_graph(handle);
  return graph != NULL ? graph->input_count : -1;
}

int get_graph_output_node_number(graph_t handle) {
  const Graph *graph = tg_graph(handle);
  return graph != NULL ? graph->output_count : -1;
}

static Tensor *tensor_at(graph_t handle, int node, int number, int is_output) {
  Graph *graph = tg_graph(handle);
  if (graph == NULL) return NULL;
  const int count = is_output ? graph->output_count : graph->input_count;
  if (node >= 0 && number >= 0 && node + number < count)
    return &graph->tensors[(is_output ? graph->input_count : 0) + node + number];
  tg_error("the graph has no %s tensor %d of node %d", is_output ? "output" : "input", number, node);
  return NULL;
}

tensor_t get_graph_input_tensor(graph_t graph, int node, int number) {
  const Tensor *tensor = tensor_at(graph, node, number, 0);
  return tensor != NULL ? tensor->handle : NULL;
}

/* Every output is a node with one tensor; those of a node with several also count as its further ones. */
tensor_t get_graph_output_tensor(graph_t graph, int node, int number) {
  const Tensor *tensor = tensor_at(graph, node, number, 1);
  return tensor != NULL ? tensor->handle : NULL;
}

node_t get_graph_input_node(graph_t graph, int number) {
  const Tensor *tensor = tensor_at(graph, number, 0, 0);
  return tensor != NULL ? tensor->node : NULL;
}

node_t get_graph_output_node(graph_t graph, int number) {
  const Tensor *tensor = tensor_at(graph, number, 0, 1);
  return tensor != NULL ? tensor->node : NULL;
}

static Tensor *named(graph_t handle, const char *name) {
  Graph *graph = tg_graph(handle);
  if (graph == NULL || name == NULL) return NULL;
  for (int i = 0; i < graph->input_count + graph->output_count; i++)
    if (strcmp(graph->tensors[i].about.name, name) == 0) return &graph->tensors[i];
  tg_error("the graph has no input or output '%s'", name);
  return NULL;
}

tensor_t get_graph_tensor(graph_t graph, const char *name) {
  const Tensor *tensor = named(graph, name);
  return tensor != NULL ? tensor->handle : NULL;
}

node_t get_graph_node(graph_t graph, const char *name) {
  const Tensor *tensor = named(graph, name);
  return tensor != NULL ? tensor->node : NULL;
}

int get_graph_node_num(graph_t handle) {
  const Graph *graph = tg_graph(handle);
  return graph != NULL ? graph->input_count + graph->output_count : -1;
}

node_t get_graph_node_by_idx(graph_t handle, int number) {
  const Graph *graph = tg_graph(handle);
  if (graph == NULL || number < 0 || number >= graph->input_count + graph->output_count) return NULL;
  return graph->tensors[number].node;
}

int set_graph_layout(graph_t graph, int layout) {
  if (tg_graph(graph) == NULL) return -1;
  return layout == TENGINE_LAYOUT_NCHW ? 0 : tg_error("set_graph_layout: a compiled model keeps its layout");
}

int set_graph_device(graph_t graph, const char *device) {
  if (tg_graph(graph) == NULL || device == NULL) return -1;
  return strcmp(device, "CPU") == 0 ? 0 : tg_error("there is no device %s: CPU is the only one", device);
}

/* The layers as they are executed, on standard output. */
void dump_graph(graph_t handle) {
  const Graph *graph = tg_graph(handle);
  if (graph == NULL) return;
  const int count = tenon_bundle_step_count(graph->bundle);
  printf("graph node_num %d tensor_num %d\n", count, graph->input_count + graph->output_count);
  for (int i = 0; i < graph->input_count + graph->output_count; i++) {
    const Tensor *tensor = &graph->tensors[i];
    printf("%s %d: %s %s [", tensor->is_output ? "output" : "input", tensor->number, tensor->about.name,
           tensor->about.type_name);
    for (int d = 0; d < tensor->dim_count; d++) printf("%s%d", d ? "," : "", tensor->dims[d]);
    printf("]\n");
  }
  for (int i = 0; i < count; i++) {
    TenonStep step;
    if (tenon_bundle_step(graph->bundle, i, &step) == TENON_OK)
      printf("node %d: %s %s, %llu multiply-accumulates\n", i, step.layer, step.op, (unsigned long long)step.macs);
  }
  fflush(stdout);
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
