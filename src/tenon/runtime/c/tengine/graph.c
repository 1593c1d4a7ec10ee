/* Graphs: their nodes and tensors, and the handles of these. */

#include "graph.h"
#include "handle.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const HandleKind graph_kind = {"graph", "destroyed"}, node_kind = {"node", "destroyed"},
                        tensor_kind = {"tensor", "destroyed"};

Graph *tg_graph(graph_t handle) { return tn_handle_object(&graph_kind, handle); }

Node *tg_node(node_t handle) { return tn_handle_object(&node_kind, handle); }

Tensor *tg_tensor(tensor_t handle) { return tn_handle_object(&tensor_kind, handle); }

int tg_give_graph_handle(Graph *graph) { return (graph->handle = tn_handle_new(&graph_kind, graph)) != NULL ? 0 : -1; }

/* Handles of nodes and tensors are made when a program first asks for one. */
node_t tg_node_handle(Node *node) {
  if (node != NULL && node->handle == NULL) node->handle = tn_handle_new(&node_kind, node);
  return node != NULL ? node->handle : NULL;
}

tensor_t tg_tensor_handle(Tensor *tensor) {
  if (tensor != NULL && tensor->handle == NULL) tensor->handle = tn_handle_new(&tensor_kind, tensor);
  return tensor != NULL ? tensor->handle : NULL;
}

/* ----------------------------------------------------------------------------------------------- nodes and tensors */

/* Room for one more in a list of pointers, which grows by doubling. */
static int make_room(void *list_pointer, int count) {
  void **list, **grown;
  if (count > 0 && (count & (count - 1)) != 0) return 0;
  memcpy(&list, list_pointer, sizeof list);
  if ((grown = realloc(list, (count ? 2 * (size_t)count : 1) * sizeof *grown)) == NULL) return -1;
  memcpy(list_pointer, &grown, sizeof grown);
  return 0;
}

/* A copy of a name, or one made of a number. */
static char *name_of(Graph *graph, const char *name, size_t length, const char *format, int number) {
  char text[32];
  if (name != NULL) return tn_pool_text(&graph->pool, name, length);
  snprintf(text, sizeof text, format, number);
  return tn_pool_text(&graph->pool, text, strlen(text));
}

Tensor *tg_new_tensor(Graph *graph, const char *name, size_t length, int data_type) {
  Tensor *tensor = tn_pool_take(&graph->pool, sizeof *tensor);
  if (tensor == NULL || make_room(&graph->tensors, graph->tensor_count) != 0) return NULL;
  tensor->graph = graph;
  tensor->data_type = data_type;
  tensor->kind = TENSOR_TYPE_VAR;
  if ((tensor->name = name_of(graph, name, length, "tensor_%7d", graph->tensor_count)) == NULL) return NULL;
  if (name == NULL) graph->is_changed = 1; /* the file has no name for it */
  return graph->tensors[graph->tensor_count++] = tensor;
}

Node *tg_new_node(Graph *graph, const char *name, size_t length, int type) {
  Node *node = tn_pool_take(&graph->pool, sizeof *node);
  if (node == NULL || make_room(&graph->nodes, graph->node_count) != 0) return NULL;
  node->graph = graph;
  node->type = type;
  node->op = tg_operator(type);
  node->index = graph->node_count;
  if ((node->name = name_of(graph, name, length, "node_%d", node->index)) == NULL) return NULL;
  return graph->nodes[graph->node_count++] = node;
}

int tg_set_defaults(Node *node) {
  int count = 0;
  Field field;
  for (const char *fields = node->op->fields; tg_next_field(&fields, &field);) count++;
  node->parameters = tn_pool_take(&node->graph->pool, (size_t)count * sizeof *node->parameters);
  if (node->parameters == NULL) return -1;
  count = 0;
  for (const char *fields = node->op->fields; tg_next_field(&fields, &field);)
    node->parameters[count++].word = field.initial;
  return 0;
}

int tg_connect(Graph *graph, Tensor ***list, int *count, int number, Tensor *tensor) {
  if (number >= *count) {
    Tensor **grown = tn_pool_take(&graph->pool, (size_t)(number + 1) * sizeof *grown);
    if (grown == NULL) return -1;
    if (*count > 0) memcpy(grown, *list, (size_t)*count * sizeof *grown);
    *list = grown;
    *count = number + 1;
  }
  (*list)[number] = tensor;
  return 0;
}

Tensor *tg_find_tensor(const Graph *graph, const char *name) {
  for (int i = 0; i < graph->tensor_count; i++)
    if (strcmp(graph->tensors[i]->name, name) == 0) return graph->tensors[i];
  return NULL;
}

Node *tg_find_node(const Graph *graph, const char *name) {
  for (int i = 0; i < graph->node_count; i++)
    if (strcmp(graph->nodes[i]->name, name) == 0) return graph->nodes[i];
  return NULL;
}
