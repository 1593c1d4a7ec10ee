/* A team of threads that run one network together: start it once, run it often, stop it. */

#ifndef TENON_THREADS_H
#define TENON_THREADS_H

#include <stdint.h>

typedef struct TenonTeam TenonTeam;

/* What a bundle's <name>_phase is. */
typedef void TenonPhase(uint8_t *constantWeight, uint8_t *mutableWeight, uint8_t *activations, int phase, int part,
                        int parts);

/* `threads` includes the thread that calls tenon_team_run; the others inherit this thread's processors.  NULL if
   memory or threads are short. */
TenonTeam *tenon_team_start(TenonPhase *run, int phases, int threads);

/* Run the network once.  One call at a time for each team. */
void tenon_team_run(TenonTeam *team, uint8_t *constantWeight, uint8_t *mutableWeight, uint8_t *activations);

/* From now on, whoever opens a phase, or ends the last, calls `watch` first. */
void tenon_team_watch(TenonTeam *team, void (*watch)(void *), void *context);

void tenon_team_stop(TenonTeam *team);

#endif
