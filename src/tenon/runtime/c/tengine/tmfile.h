/* Tmfiles. */

#ifndef TENON_TENGINE_TMFILE_H
#define TENON_TENGINE_TMFILE_H

#include "graph.h"

int tg_is_tmfile(const File *file);
int tg_read_tmfile(Graph *graph); /* 0, or -1 after a message */
/* The nodes of a level (or all: -1) as a tmfile, from malloc; NULL after a message. */
uint8_t *tg_write_tmfile(const Graph *graph, int level, size_t *size);

#endif
