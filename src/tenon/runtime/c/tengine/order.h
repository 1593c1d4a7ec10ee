/* The order in which nodes are computed, and their levels: how many custom kernels stand before them. */

#ifndef TENON_TENGINE_ORDER_H
#define TENON_TENGINE_ORDER_H

#include "graph.h"

int tg_sort_nodes(Graph *graph); /* 0, or -1 after a message */
int tg_reads_across(const Graph *graph, const Node *node, int level); /* whether a stage needs a node's results */

#endif
