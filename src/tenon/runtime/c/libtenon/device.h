/* The devices that programs have registered and that plug-ins bring. */

#ifndef TENON_DEVICE_REGISTRY_H
#define TENON_DEVICE_REGISTRY_H

#include "tenon.h"
#include "tenon_device.h"

/* NULL, and an error text, if there is none of that name. */
const TenonDevice *tn_find_device(const char *name);
/* "PATH=ARGUMENT" of the plug-in of a device, for the compiler. */
TenonStatus tn_device_origin(const char *name, const char **origin);

#endif
