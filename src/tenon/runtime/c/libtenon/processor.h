/* Features of the processor, and whose code it executes. */

#ifndef TENON_PROCESSOR_H
#define TENON_PROCESSOR_H

#include <stddef.h>
#include <stdint.h>

/* The features of the processor that targets ask for, between blanks; "" if they are not known. */
void tn_processor_features(char *text, size_t size);

enum { TN_AVX2 = 3, TN_AVX512F = 5, TN_AVX512DQ = 6, TN_KNOWN = 31 };
uint32_t tn_processor_bits(void); /* of x86: bits with these numbers; the last one is always set */

/* How many features a target asks for, of those that this machine has; -1 if it does not execute the target's code. */
int tn_target_features(const char *target);

#endif
