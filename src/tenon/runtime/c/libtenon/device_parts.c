/* The parts of a network that a device runs.

   A bundle that was compiled with --offload has one more input, behind the others, through which its code calls the
   device (tenon_device.h); libtenon fills it before every run and does not show it. */

#include "device_parts.h"
#include "errors.h"
#include "tenon_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct DeviceParts {
  TenonDeviceCalls calls;
  const Bundle *bundle; /* which has the device */
  void **parts;         /* part_count of each binding; NULL before their first run */
  int binding, failed;
  char error[256];
};

static void fail(DeviceParts *own, const char *what) {
  const TenonDevice *device = own->bundle->device;
  const char *why = device->error != NULL ? device->error(device->self) : NULL;
  if (!__atomic_exchange_n(&own->failed, 1, __ATOMIC_RELAXED))
    snprintf(own->error, sizeof own->error, "device %s %s: %s", device->name, what,
             why != NULL && *why ? why : "it gives no reason");
}

/* Called by the bundle's code, by different threads for different parts. */
static void run_part(void *context, uint32_t number, const void *model, size_t bytes, const void *const *inputs,
                     void *const *outputs) {
  DeviceParts *own = context;
  const TenonDevice *device = own->bundle->device;
  const int count = own->bundle->part_count;
  if ((int64_t)number >= count) return;
  void **part = &own->parts[own->binding * count + (int)number];
  if (*part == NULL && device->prerun(device->self, model, bytes, part) != 0) {
    *part = NULL;
    fail(own, "refuses a part of the network");
  } else if (device->run(*part, inputs, outputs) != 0) {
    fail(own, "failed");
  }
}

DeviceParts *tn_device_parts(const Bundle *bundle) {
  DeviceParts *own = calloc(1, sizeof *own);
  void **parts = calloc((size_t)bundle->part_count * (size_t)bundle->about.binding_count + 1, sizeof *parts);
  if (own == NULL || parts == NULL) {
    free(own);
    free(parts);
    return NULL;
  }
  *own = (DeviceParts){{run_part, own}, bundle, parts, 0, 0, ""};
  return own;
}

void tn_begin_parts(DeviceParts *own, int binding, uint8_t *tensors) {
  const uint64_t address = (uint64_t)(uintptr_t)&own->calls, words[2] = {address, ~address};
  own->binding = binding;
  own->failed = 0;
  memcpy(tensors + own->bundle->about.bindings[binding].device_offset, words, sizeof words);
}

TenonStatus tn_parts_status(const DeviceParts *own) {
  return own->failed ? tn_fail(TENON_RUN_FAILED, "%s: %s", own->bundle->about.name, own->error) : TENON_OK;
}

void tn_end_parts(DeviceParts *own) {
  if (own == NULL) return;
  const int count = own->bundle->part_count * own->bundle->about.binding_count;
  for (int i = 0; i < count; i++)
    if (own->parts[i] != NULL) own->bundle->device->postrun(own->parts[i]);
  free(own->parts);
  free(own);
}
