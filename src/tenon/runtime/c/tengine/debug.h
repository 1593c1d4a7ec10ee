/* Output about a graph: dumps, and the files and times of TG_DEBUG_*. */

#ifndef TENON_TENGINE_DEBUG_H
#define TENON_TENGINE_DEBUG_H

#include "graph.h"

int tg_debug(const char *variable); /* whether it is set to something else than 0 */
void tg_dump(const Graph *graph, enum log_level level);
void tg_write_blobs(const Graph *graph);
void tg_print_times(const Graph *graph);

#endif
