/* The parts of a network that devices run.

   A bundle that was compiled with --offload has one more input for each device, behind the others, through which its code
   calls the device (tenon_device.h); libtenon fills them before every run and does not show them. */

#include "device_parts.h"
#include "errors.h"
#include "tenon_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
  TenonDeviceCalls calls;
  DeviceParts *owner;
  const TenonDevice *device;
  BeginPart *begin;
  void **parts; /* part_count of each binding; NULL before their first run */
  int part_count;
} PartCalls;

struct DeviceParts {
  const Bundle *bundle; /* which has the devices */
  const char *gpu;
  int binding, failed;
  char error[256];
  PartCalls devices[PART_DEVICES];
};

static void fail(PartCalls *own, const char *what) {
  const TenonDevice *device = own->device;
  DeviceParts *all = own->owner;
  const char *why = device->error != NULL ? device->error(device->self) : NULL;
  if (!__atomic_exchange_n(&all->failed, 1, __ATOMIC_RELAXED))
    snprintf(all->error, sizeof all->error, "device %s %s: %s", device->name, what,
             why != NULL && *why ? why : "it gives no reason");
}

static int begin(const PartCalls *own, const void *model, size_t bytes, void **part) {
  const TenonDevice *device = own->device;
  if (own->begin != NULL) return own->begin(device, model, bytes, own->owner->gpu, part);
  return device->prerun(device->self, model, bytes, part);
}

/* Called by the bundle's code, by different threads for different parts. */
static void run_part(void *context, uint32_t number, const void *model, size_t bytes, const void *const *inputs,
                     void *const *outputs) {
  PartCalls *own = context;
  const TenonDevice *device = own->device;
  if ((int64_t)number >= own->part_count) return;
  void **part = &own->parts[own->owner->binding * own->part_count + (int)number];
  if (*part == NULL && begin(own, model, bytes, part) != 0) {
    *part = NULL;
    fail(own, "refuses a part of the network");
  } else if (device->run(*part, inputs, outputs) != 0) {
    fail(own, "failed");
  }
}

DeviceParts *tn_device_parts(const Bundle *bundle, const char *gpu) {
  DeviceParts *own = calloc(1, sizeof *own);
  if (own == NULL) return NULL;
  own->bundle = bundle;
  own->gpu = gpu;
  for (int i = 0; i < bundle->device_count; i++) {
    const PartDevice *device = &bundle->devices[i];
    void **parts = calloc((size_t)device->part_count * (size_t)bundle->about.binding_count + 1, sizeof *parts);
    PartCalls *calls = &own->devices[i];
    *calls = (PartCalls){{run_part, calls}, own, device->device, device->begin, parts, device->part_count};
    if (parts != NULL) continue;
    tn_end_parts(own);
    return NULL;
  }
  return own;
}

void tn_begin_parts(DeviceParts *own, int number, uint8_t *tensors) {
  const Binding *binding = &own->bundle->about.bindings[number];
  own->binding = number;
  own->failed = 0;
  for (int i = 0; i < binding->device_count; i++) {
    const uint64_t address = (uint64_t)(uintptr_t)&own->devices[binding->devices[i]].calls, words[2] = {address, ~address};
    memcpy(tensors + binding->inputs[binding->input_count + i].offset, words, sizeof words);
  }
}

TenonStatus tn_parts_status(const DeviceParts *own) {
  return own->failed ? tn_fail(TENON_RUN_FAILED, "%s: %s", own->bundle->about.name, own->error) : TENON_OK;
}

void tn_end_parts(DeviceParts *own) {
  if (own == NULL) return;
  for (int i = 0; i < own->bundle->device_count; i++) {
    const PartCalls *calls = &own->devices[i];
    const int count = calls->parts != NULL ? calls->part_count * own->bundle->about.binding_count : 0;
    for (int k = 0; k < count; k++)
      if (calls->parts[k] != NULL) calls->device->postrun(calls->parts[k]);
    free(calls->parts);
  }
  free(own);
}
