/* What the files of the Tengine layer share: graphs, their tensors and nodes, contexts. */

#ifndef TENON_TENGINE_GRAPH_H
#define TENON_TENGINE_GRAPH_H

#include "tengine/c_api.h"
#include "tenon.h"

enum { NAME = 64 };

typedef struct Graph Graph;

/* An input or output of the network. */
typedef struct {
  Graph *graph;
  void *handle, *node; /* the node is that of the placeholder, or of the layer that computes an output */
  int is_output, number, dim_count;
  int dims[MAX_SHAPE_DIM_NUM];
  TenonTensor about;
  void *buffer; /* of the program; NULL: the engine's own */
  int has_own_quantisation, zero_point;
  float scale;
} Tensor;

struct Graph {
  void *handle, *content; /* of a model from memory: a copy, NULL if it is a file */
  char *path, *format;
  size_t size;
  TenonBundle *bundle;
  TenonEngine *engine; /* from prerun to postrun */
  Tensor *tensors;     /* inputs, then outputs */
  int input_count, output_count, has_other_shapes, has_run;
};

/* A message on standard error or to set_log_output, and -1. */
#if defined(__GNUC__)
__attribute__((format(printf, 1, 2)))
#endif
int tg_error(const char *format, ...);

Graph *tg_graph(graph_t handle);
Tensor *tg_tensor(tensor_t handle);

/* Takes what the bundle says of each input and output. */
void tg_describe(Graph *graph);

#endif
