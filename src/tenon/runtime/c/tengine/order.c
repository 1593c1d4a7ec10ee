/* The order in which nodes are computed, and their levels. */

#include "order.h"
#include "messages.h"

#include <stdlib.h>

/* Puts a node, after those that it depends on, into the order; -1 if it depends on itself. */
static int visit(Graph *graph, Node *node, uint8_t *marks, int *count) {
  if (marks[node->index] == 2) return 0;
  if (marks[node->index] == 1) return tg_error("node '%s' depends on its own result", node->name);
  marks[node->index] = 1;
  node->level = 0;
  for (int i = 0; i < node->input_count; i++) {
    Node *before = node->inputs[i] != NULL ? node->inputs[i]->producer : NULL;
    if (before == NULL) continue;
    if (visit(graph, before, marks, count) != 0) return -1;
    const int level = before->level + (before->kernel != NULL);
    if (level > node->level) node->level = level;
  }
  marks[node->index] = 2;
  graph->order[(*count)++] = node;
  return 0;
}

int tg_sort_nodes(Graph *graph) {
  int count = 0;
  uint8_t *marks = calloc((size_t)graph->node_count + 1, 1);
  graph->order = tn_pool_take(&graph->pool, (size_t)graph->node_count * sizeof(Node *));
  int status = marks != NULL && graph->order != NULL ? 0 : tg_error("no memory for a graph");
  for (int i = 0; i < graph->node_count && status == 0; i++) status = visit(graph, graph->nodes[i], marks, &count);
  free(marks);
  return status;
}

int tg_reads_across(const Graph *graph, const Node *node, int level) {
  for (int i = 0; i < node->output_count; i++) {
    const Tensor *tensor = node->outputs[i];
    if (tensor->is_output || tensor->is_kept) return 1;
    for (int n = 0; level >= 0 && tensor->consumer_count > 0 && n < graph->node_count; n++) {
      const Node *reader = graph->nodes[n];
      for (int j = 0; (reader->kernel != NULL || reader->level != level) && j < reader->input_count; j++)
        if (reader->inputs[j] == tensor) return 1;
    }
  }
  return 0;
}
