/* Elements of a network's inputs and outputs as numbers. */

#ifndef TENON_ELEMENTS_H
#define TENON_ELEMENTS_H

#include "network.h"

/* Element `at` of an input or output in a mutable region, in row-major order. */
double tenon_element(const uint8_t *region, const TenonPort *port, size_t at);

size_t tenon_element_count(const TenonPort *port);

#endif
