/* What the files of the Tengine layer share: graphs of nodes and tensors, and the stages that run them. */

#ifndef TENON_TENGINE_GRAPH_H
#define TENON_TENGINE_GRAPH_H

#include "memory_pool.h"
#include "platform.h"
#include "tengine/c_api.h"
#include "tenon.h"

enum { NAME = 64, EVENTS = GRAPH_EXEC_DONE + 1 };

typedef struct Graph Graph;
typedef struct Node Node;
typedef struct Tensor Tensor;

int tg_is_initialised(void); /* whether init_tengine was called, and release_tengine not after it */

/* ---- operators */
typedef struct {
  int type;           /* the number in tmfiles */
  const char *name;   /* in Tengine's spelling */
  const char *fields; /* "axis=1 slope:f points:I": name, kind (nothing: int, f: float, I, F, A: lists), and the
                         default, of floats as the int that has the same bits */
} Operator;

/* A parameter of a node: an int, the bits of a float, or words that lie elsewhere. */
typedef struct {
  int32_t word;
  int32_t *list;
  int32_t count; /* elements of the list; of kind A, each has four words */
} Parameter;

typedef struct {
  char name[32], kind; /* i f I F A */
  int32_t initial;
} Field;

enum { CONST_TYPE = 4, INPUT_TYPE = 12 };

const Operator *tg_operator(int type);                /* NULL if it is unknown */
const Operator *tg_operator_named(const char *name);
int tg_next_field(const char **fields, Field *field); /* 0 at the end */
int tg_set_defaults(Node *node);                      /* 0, or -1 without memory */

/* ---- graphs */
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
  char *name;
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

/* NULL without memory; `name` may be NULL. */
Tensor *tg_new_tensor(Graph *graph, const char *name, size_t length, int data_type);
Node *tg_new_node(Graph *graph, const char *name, size_t length, int type);
int tg_connect(Graph *graph, Tensor ***list, int *count, int number, Tensor *tensor); /* 0, or -1 */
Tensor *tg_find_tensor(const Graph *graph, const char *name);
Node *tg_find_node(const Graph *graph, const char *name);
int64_t tg_element_bytes(int data_type); /* 0 if it is unknown */
int64_t tg_bytes(const Tensor *tensor);
int tg_data_type(TenonType type); /* -1 if Tengine has none */
/* Programs that know only tensors of four dimensions put ones around those that a model has. */
int tg_same_but_for_ones(const int *a, int a_count, const int *b, int b_count);
const void *tg_data(const Tensor *tensor); /* where its elements are; NULL if nowhere yet */

/* ---- models: both return 0, or -1 after a message */
int tg_is_tmfile(const File *file);
int tg_read_tmfile(Graph *graph);
/* The nodes of a level (or all: -1) as a tmfile, from malloc. */
uint8_t *tg_write_tmfile(const Graph *graph, int level, size_t *size);

/* ---- devices: sets a name, or -1 after a message if there is no such device */
int tg_set_device(char *device, const char *name);
int tg_is_context(context_t context);             /* whether it is valid; else a message */
const char *tg_context_device(context_t context); /* of a new graph; NULL is a private context */

/* ---- stages */
int tg_open_opaque(Graph *graph);
int tg_plan_stages(Graph *graph);
void tg_end_stages(Graph *graph);
/* Once no node of the graph has the kernel any more. */
void tg_release_kernel(const Graph *graph, struct custom_kernel_ops *ops);
int tg_prepare_kernel(Graph *graph, Stage *stage);
int tg_prerun_kernel(const Stage *stage);
int tg_run_kernel(const Stage *stage);
void tg_postrun_kernel(const Stage *stage);
int tg_reads_across(const Graph *graph, const Node *node, int level); /* whether a stage needs a node's results */

/* ---- messages: `level` as in set_log_level; tg_error prints "Tengine: ", a line, and returns -1 */
#if defined(__GNUC__)
__attribute__((format(printf, 1, 2)))
#endif
int tg_error(const char *format, ...);
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
void tg_log(enum log_level level, const char *format, ...);
void tg_dump(const Graph *graph, enum log_level level);

/* ---- TG_DEBUG_*: whether a variable is set to something else than 0, and the files of TG_DEBUG_DATA */
int tg_debug(const char *variable);
void tg_write_blobs(const Graph *graph);
void tg_print_times(const Graph *graph);

#endif
