/* A thread pool (team) that runs one network: start once, run repeatedly, stop. */

#ifndef TENON_THREADS_H
#define TENON_THREADS_H

#include <stdint.h>

typedef struct TenonTeam TenonTeam;

/* The type of a bundle's <name>_phase. */
typedef void TenonPhase(uint8_t *constantWeight, uint8_t *mutableWeight, uint8_t *activations, int phase, int part,
                        int parts);

/* `threads` includes the thread that calls tenon_team_run; the others inherit its processor affinity.  Returns NULL if
   memory or threads cannot be allocated. */
TenonTeam *tenon_team_start(TenonPhase *run, int phases, int threads);

/* Run the network once.  One call at a time for each team. */
void tenon_team_run(TenonTeam *team, uint8_t *constantWeight, uint8_t *mutableWeight, uint8_t *activations);

/* Call `watch` before each phase and after the last one, for profiling. */
void tenon_team_watch(TenonTeam *team, void (*watch)(void *), void *context);

void tenon_team_stop(TenonTeam *team);

#endif
