/* A thread pool that runs one network: start once, run repeatedly, stop. */

#ifndef TENON_THREADS_H
#define TENON_THREADS_H

#include <stdint.h>

typedef struct TenonThreadPool TenonThreadPool;

/* The types of a bundle's <name>_phase, which runs one part of a phase, and <name>_next, which returns the phase after
   another: the first one after -1; after the last one -1, or -1 - status where the run has failed.  Part 0 to parts - 1
   run at the same time or in any order, each with the number of a thread that runs no other. */
typedef void TenonPhase(const uint8_t *constantWeight, uint8_t *mutableWeight, uint8_t *activations, int phase,
                        int part, int parts, int thread);
typedef int TenonNext(const uint8_t *constantWeight, uint8_t *mutableWeight, uint8_t *activations, int phase);

typedef void TenonWatch(void *context, int phase);

/* `threads` includes the thread that calls tenon_thread_pool_run; the others inherit its processor affinity.  Returns NULL if
   memory or threads cannot be allocated. */
TenonThreadPool *tenon_thread_pool_start(TenonPhase *run, TenonNext *next, int threads);

/* Run the network once; returns what its entry point would.  One call at a time for each pool. */
int tenon_thread_pool_run(TenonThreadPool *pool, const uint8_t *constantWeight, uint8_t *mutableWeight,
                          uint8_t *activations);

/* Call `watch` with the number of each phase before it, and with a negative number after the last one, for profiling. */
void tenon_thread_pool_watch(TenonThreadPool *pool, TenonWatch *watch, void *context);

void tenon_thread_pool_stop(TenonThreadPool *pool);

#endif
