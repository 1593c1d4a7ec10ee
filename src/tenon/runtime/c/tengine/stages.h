/* The stages of a run. */

#ifndef TENON_TENGINE_STAGES_H
#define TENON_TENGINE_STAGES_H

#include "graph.h"

/* Both return 0, or -1 after a message. */
int tg_open_opaque(Graph *graph);
int tg_plan_stages(Graph *graph);
void tg_end_stages(Graph *graph);

#endif
