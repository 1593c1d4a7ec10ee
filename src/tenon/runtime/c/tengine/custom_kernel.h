/* Nodes that the program computes itself. */

#ifndef TENON_TENGINE_CUSTOM_KERNEL_H
#define TENON_TENGINE_CUSTOM_KERNEL_H

#include "graph.h"

/* Once no node of the graph has the kernel any more. */
void tg_release_kernel(const Graph *graph, struct custom_kernel_ops *ops);
/* The following return 0, or -1 after a message. */
int tg_prepare_kernel(Graph *graph, Stage *stage);
int tg_prerun_kernel(const Stage *stage);
int tg_run_kernel(const Stage *stage);
void tg_postrun_kernel(const Stage *stage);

#endif
