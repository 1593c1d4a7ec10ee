/* A team of threads that run one network together: start it once, run it often, stop it. */

#ifndef TENON_THREADS_H
#define TENON_THREADS_H

#include <stdint.h>

typedef struct TenonTeam TenonTeam;

/* What a bundle's <name>_threads is. */
typedef int TenonEntry(uint8_t *constantWeight, uint8_t *mutableWeight, uint8_t *activations, int thread, int threads,
                       void (*barrier)(void *), void *context);

/* `threads` includes the thread that calls tenon_team_run; the others inherit this thread's processors.  NULL if
   memory or threads are short. */
TenonTeam *tenon_team_start(TenonEntry *entry, int threads);

/* Run the network once.  One call at a time for each team. */
int tenon_team_run(TenonTeam *team, uint8_t *constantWeight, uint8_t *mutableWeight, uint8_t *activations);

/* From now on, at every barrier, the last thread to arrive calls `watch` before any of them goes on. */
void tenon_team_watch(TenonTeam *team, void (*watch)(void *), void *context);

void tenon_team_stop(TenonTeam *team);

#endif
