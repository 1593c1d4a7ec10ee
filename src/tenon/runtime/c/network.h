/* One bundle under fixed names, for the programs in this folder, independent of the network's name. */

#ifndef TENON_NETWORK_H
#define TENON_NETWORK_H

#include <stddef.h>
#include <stdint.h>

enum { TENON_MAX_RANK = 16 };

typedef struct {
  const char *name, *type;
  size_t offset, bytes; /* in the mutable region */
  int rank;
  long extents[TENON_MAX_RANK];
} TenonPort;

extern const char tenon_name[];
extern const TenonPort tenon_inputs[], tenon_outputs[];
extern const int tenon_input_count, tenon_output_count;

extern uint8_t tenon_mutable[], tenon_activations[];
extern const size_t tenon_mutable_size, tenon_activations_size;

/* Runs the network on its own regions; 0 or what the network returned. */
int tenon_run(void);

/* Gives the states their initial content, with TENON_STATES; else there are none. */
void tenon_reset_states(void);
/* Whether an input is a state, which lies at the place of an output: a run finds there what the one before left. */
int tenon_is_state(const TenonPort *input);

/* One step of the network, a kernel call, and the step that comes after another: the first one after -1, -1 after the
   last one; there where TENON_STEPS is above 0 (see probe.c). */
void tenon_step(int step);
int tenon_next_step(int step);

/* Multithreaded runs (see threads.h); only with TENON_THREAD_POOL. */
extern const int tenon_max_threads;
void tenon_phase(const uint8_t *constantWeight, uint8_t *mutableWeight, uint8_t *activations, int phase, int part,
                 int parts, int thread);
int tenon_next(const uint8_t *constantWeight, uint8_t *mutableWeight, uint8_t *activations, int phase);
extern const uint8_t tenon_weights[];

#endif
