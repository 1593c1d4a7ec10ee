/* The bundle that TENON_HEADER, TENON_ENTRY and TENON_PREFIX name, its regions and its weights. */

#include TENON_HEADER
#include "network.h"

#define TENON_JOIN_(a, b) a##b
#define TENON_JOIN(a, b) TENON_JOIN_(a, b)
#define TENON_OF_BUNDLE(what) TENON_JOIN(TENON_PREFIX, what)
#define TENON_TEXT_(a) #a
#define TENON_TEXT(a) TENON_TEXT_(a)
#define TENON_ROOM(bytes) ((bytes) ? (bytes) : 1)

const char tenon_name[] = TENON_TEXT(TENON_ENTRY);

/* A last, empty row: a network may have no input. */
#define TENON_ROW(name, type, offset, bytes, rank, ...) {name, #type, offset, bytes, rank, {__VA_ARGS__}},
const TenonPort tenon_inputs[] = {TENON_OF_BUNDLE(INPUTS)(TENON_ROW){"", "", 0, 0, 0, {0}}};
const TenonPort tenon_outputs[] = {TENON_OF_BUNDLE(OUTPUTS)(TENON_ROW){"", "", 0, 0, 0, {0}}};
const int tenon_input_count = sizeof tenon_inputs / sizeof *tenon_inputs - 1;
const int tenon_output_count = sizeof tenon_outputs / sizeof *tenon_outputs - 1;

TENON_MEM_ALIGN(64) uint8_t tenon_mutable[TENON_ROOM(TENON_OF_BUNDLE(MUTABLE_MEM_SIZE))];
TENON_MEM_ALIGN(64) uint8_t tenon_activations[TENON_ROOM(TENON_OF_BUNDLE(ACTIVATIONS_MEM_SIZE))];
const size_t tenon_mutable_size = TENON_OF_BUNDLE(MUTABLE_MEM_SIZE);
const size_t tenon_activations_size = TENON_OF_BUNDLE(ACTIVATIONS_MEM_SIZE);

#ifdef TENON_THREAD_POOL
const int tenon_max_threads = TENON_OF_BUNDLE(MAX_THREADS);

void tenon_phase(const uint8_t *constantWeight, uint8_t *mutableWeight, uint8_t *activations, int phase, int part,
                 int parts, int thread) {
  TENON_JOIN(TENON_ENTRY, _phase)(constantWeight, mutableWeight, activations, phase, part, parts, thread);
}

int tenon_next(const uint8_t *constantWeight, uint8_t *mutableWeight, uint8_t *activations, int phase) {
  return TENON_JOIN(TENON_ENTRY, _next)(constantWeight, mutableWeight, activations, phase);
}
#endif

#if defined(TENON_STEPS) && TENON_STEPS > 0
void tenon_step(int step) {
  TENON_JOIN(TENON_ENTRY, _profile)(tenon_weights, tenon_mutable, tenon_activations, step, 0, 1, 0);
}

int tenon_next_step(int step) {
  return TENON_JOIN(TENON_ENTRY, _profile_next)(tenon_weights, tenon_mutable, tenon_activations, step);
}
#endif

#ifdef TENON_STATES
void tenon_reset_states(void) { TENON_JOIN(TENON_ENTRY, _reset)(tenon_mutable); }
#else
void tenon_reset_states(void) {}
#endif

int tenon_is_state(const TenonPort *input) {
  for (int i = 0; i < tenon_output_count; i++)
    if (input->bytes > 0 && tenon_outputs[i].bytes > 0 && tenon_outputs[i].offset == input->offset) return 1;
  return 0;
}

int tenon_run(void) { return TENON_ENTRY(tenon_weights, tenon_mutable, tenon_activations); }
