/* The devices that programs have registered and that plug-ins bring. */

#ifndef TENON_DEVICE_REGISTRY_H
#define TENON_DEVICE_REGISTRY_H

#include "memory_pool.h"
#include "tenon.h"
#include "tenon_device.h"

/* NULL, and an error text, if there is none of that name; `host_only` as for tn_bundle_device. */
const TenonDevice *tn_find_device(const char *name, int host_only);
/* For each of several devices, separated by commas, what the compiler takes: "PATH=ARGUMENT" of its plug-in, or the name of
   a GPU target. */
TenonStatus tn_device_origins(const char *names, Texts *origins);

#endif
