/* Runs: prepare a graph, run it, and end. */

#include "custom_kernel.h"
#include "debug.h"
#include "graph.h"
#include "messages.h"
#include "stages.h"

#include <string.h>

/* ------------------------------------------------------------------------------------------------------ preparation */

/* The bits of the mask that are processors of this process. */
static int create_engine(Stage *stage, const struct options *options, const char *gpu) {
  int32_t processors[64];
  Processors own;
  TenonEngineOptions wanted = TENON_ENGINE_OPTIONS_INIT;
  wanted.gpu = gpu;
  const int most = tenon_bundle_max_threads(stage->bundle);
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
  if (tenon_engine_create(stage->bundle, &wanted, &stage->engine) == TENON_OK &&
      tenon_engine_prepare(stage->engine) == TENON_OK)
    return 0;
  return tg_error("%s", tenon_last_error());
}

/* Inputs of the network and results of stages are where the first engine that has them keeps them. */
static int find_memory(const Stage *stage) {
  for (int i = 0; i < stage->port_count; i++) {
    const StagePort *port = &stage->ports[i];
    if (port->tensor->memory != NULL) continue;
    const TenonStatus status = (port->is_output ? tenon_engine_output_data
                                                : tenon_engine_input_data)(stage->engine, port->number, &port->tensor->memory);
    if (status != TENON_OK) return tg_error("%s", tenon_last_error());
  }
  return 0;
}

static void end_engines(Graph *graph) {
  for (int i = 0; i < graph->stage_count; i++) {
    if (graph->stages[i].engine != NULL) tenon_engine_destroy(graph->stages[i].engine);
    graph->stages[i].engine = NULL;
  }
  for (int i = 0; i < graph->tensor_count; i++) graph->tensors[i]->memory = NULL;
}

int prerun_graph_multithread(graph_t handle, struct options options) {
  Graph *graph = tg_graph(handle);
  if (graph == NULL) return -1;
  if (graph->is_prepared) return tg_error("the graph is prepared already: postrun_graph comes first");
  if (tg_plan_stages(graph) != 0) return graph->status = GRAPH_STAT_ERROR, -1;
  for (int i = 0; i < graph->stage_count; i++) {
    Stage *stage = &graph->stages[i];
    const int status = stage->kernel != NULL ? tg_prerun_kernel(stage) : create_engine(stage, &options, graph->gpu);
    if (status == 0 && (stage->kernel != NULL || find_memory(stage) == 0)) continue;
    end_engines(graph);
    return graph->status = GRAPH_STAT_ERROR, -1;
  }
  graph->is_prepared = 1;
  graph->status = GRAPH_STAT_READY;
  graph->run_time = graph->run_count = 0;
  if (tg_debug("TG_DEBUG_GRAPH")) tg_dump(graph, LOG_EMERG);
  return 0;
}

int prerun_graph(graph_t graph) {
  const struct options options = {1, TENGINE_CLUSTER_BIG, -1, (uint64_t)-1};
  return prerun_graph_multithread(graph, options);
}

int postrun_graph(graph_t handle) {
  Graph *graph = tg_graph(handle);
  if (graph == NULL) return -1;
  if (!graph->is_prepared) return tg_error("postrun_graph: the graph is not prepared");
  if (tg_debug("TG_DEBUG_TIME")) tg_print_times(graph);
  for (int i = 0; i < graph->stage_count; i++)
    if (graph->stages[i].kernel != NULL) tg_postrun_kernel(&graph->stages[i]);
  end_engines(graph);
  graph->is_prepared = graph->has_run = graph->waits = 0;
  graph->status = GRAPH_STAT_DONE;
  return 0;
}

/* ------------------------------------------------------------------------------------------------------------- runs */

static int bind_buffers(const Stage *stage) {
  for (int i = 0; i < stage->port_count; i++) {
    const StagePort *port = &stage->ports[i];
    void *own = NULL, *wanted = port->tensor->buffer != NULL ? port->tensor->buffer : port->tensor->memory;
    TenonStatus status = port->is_output ? tenon_engine_output_data(stage->engine, port->number, &own)
                                         : tenon_engine_input_data(stage->engine, port->number, &own);
    if (status == TENON_OK && wanted != own)
      status = port->is_output ? tenon_engine_bind_output(stage->engine, port->number, wanted, port->bytes)
                               : tenon_engine_bind_input(stage->engine, port->number, wanted, port->bytes);
    if (status != TENON_OK) return tg_error("%s", tenon_last_error());
  }
  return 0;
}

static int run_stage(const Stage *stage) {
  if (stage->kernel != NULL) return tg_run_kernel(stage);
  if (bind_buffers(stage) != 0) return -1;
  return tenon_engine_run(stage->engine) == TENON_OK ? 0 : tg_error("%s", tenon_last_error());
}

static int notify(const Graph *graph, int event) {
  return graph->hooks[event] != NULL ? graph->hooks[event](graph->handle, event, graph->hook_arguments[event]) : 0;
}

/* With `block` 0, too, the run is over at the end of the call: a program that does not wait still finds its answer. */
int run_graph(graph_t handle, int block) {
  Graph *graph = tg_graph(handle);
  if (graph == NULL) return -1;
  if (!graph->is_prepared) return tg_error("run_graph: the graph is not prepared: prerun_graph comes first");
  const uint64_t start = tn_clock();
  graph->status = GRAPH_STAT_RUNNING;
  notify(graph, GRAPH_EXEC_START);
  for (int i = 0; i < graph->stage_count; i++)
    if (run_stage(&graph->stages[i]) != 0) {
      graph->status = GRAPH_STAT_ERROR;
      notify(graph, GRAPH_EXEC_ABORT);
      return -1;
    }
  graph->run_time += tn_clock() - start;
  graph->run_count++;
  graph->has_run = 1;
  graph->waits = !block;
  graph->status = GRAPH_STAT_READY;
  if (tg_debug("TG_DEBUG_DATA")) tg_write_blobs(graph);
  notify(graph, GRAPH_EXEC_DONE);
  return 0;
}

int wait_graph(graph_t handle, int try_wait) {
  Graph *graph = tg_graph(handle);
  (void)try_wait;
  if (graph == NULL || !graph->waits) return -1;
  graph->waits = 0;
  return 0;
}

int get_graph_exec_status(graph_t handle) {
  const Graph *graph = tg_graph(handle);
  return graph != NULL ? graph->status : -1;
}

int set_graph_event_hook(graph_t handle, int event, event_handler_t function, void *argument) {
  Graph *graph = tg_graph(handle);
  if (graph == NULL) return -1;
  if (event < 0 || event >= EVENTS) return tg_error("set_graph_event_hook: there is no event %d", event);
  graph->hooks[event] = function;
  graph->hook_arguments[event] = argument;
  return 0;
}
