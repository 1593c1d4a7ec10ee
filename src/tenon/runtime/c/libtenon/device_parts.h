/* The parts of a network that a device runs, of one engine. */

#ifndef TENON_DEVICE_PARTS_H
#define TENON_DEVICE_PARTS_H

#include "bundle.h"

typedef struct DeviceParts DeviceParts;

/* `gpu` are options of GPUs, as TenonEngineOptions has them, and stays; NULL if there is no memory. */
DeviceParts *tn_device_parts(const Bundle *bundle, const char *gpu);
void tn_begin_parts(DeviceParts *parts, int binding, uint8_t *tensors); /* before a run in this memory */
TenonStatus tn_parts_status(const DeviceParts *parts);                  /* after it */
void tn_end_parts(DeviceParts *parts);                                  /* nothing for NULL */

#endif
