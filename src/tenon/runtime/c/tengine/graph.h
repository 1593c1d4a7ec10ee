/* Graphs of nodes and tensors, and the stages that run them. */

#ifndef TENON_TENGINE_GRAPH_H
#define TENON_TENGINE_GRAPH_H

#include "library.h"
#include "memory_pool.h"
#include "operators.h"
#include "platform.h"
#include "tengine/c_api.h"
#include "tenon.h"

enum { EVENTS = GRAPH_EXEC_DONE + 1 };

typedef struct Graph Graph;
typedef struct Node Node;
typedef struct Tensor Tensor;

/* A parameter of a node: an int, the bits of a float, or words that lie elsewhere. */
typedef struct {
  int32_t word;
  int32_t *list;
  int32_t count; /* elements of the list; of kind A, each has four words */
} Parameter;

struct Tensor {
  Graph *graph;
  void *handle;
  char *name;
  Node *producer;
  int kind, data_type, layout, consumer_count, dim_count;
  int dims[MAX_SHAPE_DIM_NUM + 1];
  int quant_count;
  float *scales;
  int *zero_points;
  const uint8_t *content; /* of a constant: in the model */
  size_t content_bytes;
  void *buffer;         /* of the program; NULL: the engine's own */
  void *memory;         /* from prerun to postrun: the engine's, or taken from the stages' pool */
  int is_kept;          /* a tensor inside the network that the program asked for: it becomes an output */
  int is_input, is_output;
  int stated_layout; /* what the program says of it, which changes nothing */
};

struct Node {
  Graph *graph;
  void *handle;
  char *name, device[NAME]; /* the device: "" is the graph's */
  const Operator *op; /* NULL: not one that can be written again */
  int type, index, level, input_count, output_count;
  Tensor **inputs, **outputs;
  Parameter *parameters;
  struct custom_kernel_ops *kernel;
};

typedef struct {
  Tensor *tensor;
  int number, is_output;
  size_t bytes;
} StagePort;

/* A bundle, or a node that the program computes itself. */
typedef struct {
  Node *kernel;
  struct custom_kernel_tensor *views, **view_pointers; /* of the kernel's inputs, then its outputs */
  void **results;                                      /* the memory of the kernel's outputs */
  TenonBundle *bundle;
  TenonEngine *engine;
  StagePort *ports;
  int port_count;
  uint8_t *model; /* the part of the network that was compiled; NULL: the whole file */
} Stage;

struct Graph {
  void *handle;
  Pool pool, stage_pool;
  char *gpu;                /* options of a GPU, or NULL */
  char *path, device[NAME]; /* the device: "CPU", or that of a plug-in, which runs what it supports */
  File model; /* its content */
  Tensor **tensors;
  Node **nodes, **inputs, **outputs;
  Node **order; /* all nodes, each after those whose results it reads; made by tg_plan_stages */
  int tensor_count, node_count, input_count, output_count, layout;
  int is_opaque;  /* not a tmfile: only inputs and outputs are known */
  int is_changed; /* differs from the file, if there is one */
  int has_other_shapes;
  char **types; /* "NAME=TYPE" of inputs and outputs whose own type Tengine lacks */
  int type_count;
  Stage *stages;
  int stage_count, is_planned, is_prepared, has_run, status, waits;
  uint64_t run_time, run_count;
  event_handler_t hooks[EVENTS];
  void *hook_arguments[EVENTS];
};

Graph *tg_graph(graph_t handle);
Tensor *tg_tensor(tensor_t handle);
Node *tg_node(node_t handle);
tensor_t tg_tensor_handle(Tensor *tensor); /* NULL for NULL */
node_t tg_node_handle(Node *node);
int tg_give_graph_handle(Graph *graph); /* 0, or -1 without memory */

/* NULL without memory; `name` may be NULL. */
Tensor *tg_new_tensor(Graph *graph, const char *name, size_t length, int data_type);
Node *tg_new_node(Graph *graph, const char *name, size_t length, int type);
int tg_set_defaults(Node *node); /* the parameters of its operator: 0, or -1 without memory */
int tg_connect(Graph *graph, Tensor ***list, int *count, int number, Tensor *tensor); /* 0, or -1 */
Tensor *tg_find_tensor(const Graph *graph, const char *name);
Node *tg_find_node(const Graph *graph, const char *name);

#endif
