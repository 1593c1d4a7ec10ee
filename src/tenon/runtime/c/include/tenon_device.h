/* Devices from outside: a shared library that runs parts of networks.

   The library exports `tenon_plugin_device`, which returns a struct that lives as long as the library.  A part of a
   network is handed over as an ONNX model; its inputs and outputs are row-major, in the model's order.  Functions that
   return int give 0, or another number after an error, whose text `error` returns then. */

#ifndef TENON_DEVICE_H
#define TENON_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TENON_DEVICE_ABI 1

/* A node of the network that a device is asked about; shapes lie one after another. */
typedef struct TenonDeviceNode {
  const char *op, *name; /* as in ONNX */
  int32_t input_count, output_count;
  const char *const *types;    /* "f32", "i8", ... of the inputs, then the outputs; "" of an input that is absent */
  const int32_t *ranks;        /* of the same */
  const int64_t *const *shapes;
} TenonDeviceNode;

typedef struct TenonDevice {
  size_t struct_size; /* sizeof(TenonDevice) */
  int32_t abi;        /* TENON_DEVICE_ABI */
  const char *name;
  void *self;
  const char *(*describe)(void *self);                           /* a line for people */
  int (*supports)(void *self, const TenonDeviceNode *node);      /* 1: this device runs it */
  int (*prerun)(void *self, const void *onnx, size_t bytes, void **part);
  int (*run)(void *part, const void *const *inputs, void *const *outputs);
  void (*postrun)(void *part);                                   /* ends what prerun began */
  void (*release)(void *self);                                   /* before the library is unloaded; may be NULL */
  const char *(*error)(void *self);

  /* The members that follow may be NULL, or be missing (struct_size says so).  With `seconds`, the device takes only
     the nodes that are faster there; without it, all that it supports. */
  double (*seconds)(void *self, const TenonDeviceNode *node);    /* an estimate for a node that it supports */
  double (*copy_seconds)(void *self, uint64_t bytes);            /* of a tensor, to the device or back */
  const char *(*refusal)(void *self, const TenonDeviceNode *node); /* why it does not support a node, in a few words */
} TenonDevice;

/* How the code of a bundle calls its devices.  A bundle that was compiled for devices has an input for each, behind the
   others: TENON_DEVICE_INPUT and the device's name, of 2 + parts elements of 64 bits, which holds the address of this
   struct and its complement (~).  libtenon and Python fill it; programs that link a bundle's object do so themselves. */
#define TENON_DEVICE_INPUT "tenon_device_"

typedef struct TenonDeviceCalls {
  /* Runs a part, counted from 0, whose ONNX model is given every time; different parts may run at the same time. */
  void (*run)(void *context, uint32_t part, const void *onnx, size_t bytes, const void *const *inputs,
              void *const *outputs);
  void *context;
} TenonDeviceCalls;

/* `argument`: what the user gave beside the path of the plug-in, or "".  NULL if the device cannot be used; then
   `*message` says why. */
typedef const TenonDevice *TenonPluginDevice(const char *argument, const char **message);

#ifdef __cplusplus
}
#endif

#endif
