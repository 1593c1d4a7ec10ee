/* GPU targets as devices that run parts of networks. */

#ifndef TENON_BUNDLE_DEVICE_H
#define TENON_BUNDLE_DEVICE_H

#include "tenon.h"
#include "tenon_device.h"

typedef TenonStatus OpenFunction(const void *data, size_t bytes, const TenonOpenOptions *options, TenonBundle **bundle);

/* The function that opens parts, of a file that stands above this one. */
void tn_open_parts_by(OpenFunction *open);

/* The device whose parts are bundles for the GPU target of that name, or with `host_only` the one that runs them on the
   processor; NULL if there is no such target. */
const TenonDevice *tn_bundle_device(const char *name, int host_only);

typedef int BeginPart(const TenonDevice *device, const void *data, size_t bytes, const char *gpu, void **part);

/* Does what the `prerun` of one of these does, with options of GPUs (or NULL); NULL for any other device. */
BeginPart *tn_begin_part_of(const TenonDevice *device);

#endif
