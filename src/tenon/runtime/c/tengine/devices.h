/* The devices of a graph and its nodes, as the compiler takes them. */

#ifndef TENON_TENGINE_DEVICES_H
#define TENON_TENGINE_DEVICES_H

#include "graph.h"

/* Whether nodes have devices of their own, so that a network is cut between these and the processor. */
int tg_has_node_devices(const Graph *graph);
/* The names of all devices, separated by commas, in memory of the pool; "" if there is only the processor. */
const char *tg_device_names(const Graph *graph, Pool *pool);
/* Adds "--device-of" and a rule for the graph, then for each node of a level (all: -1) that has its own device. */
void tg_add_device_rules(const Graph *graph, int level, Texts *words);

#endif
