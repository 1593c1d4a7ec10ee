/* Parts that programs and pages of a network that reads texts have in common: its weights and its memory. */

#ifndef TENON_TEXT_PROGRAM_H
#define TENON_TEXT_PROGRAM_H

#include TENON_TEXT_HEADER
#include "program.h"

extern const uint8_t tenon_weights[];

TENON_MEM_ALIGN(64) static uint8_t network[BYTES_OF(MUTABLE_MEM_SIZE)];
TENON_MEM_ALIGN(64) static uint8_t scratch[BYTES_OF(ACTIVATIONS_MEM_SIZE)];

#endif
