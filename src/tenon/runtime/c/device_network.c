/* Parts that host programs of all device languages share: the tables of a network, and the last message.

   The generated file in which this text stands includes the bundle's header, defines the kernels (`device_text` or
   `device_shaders`), DEVICE_LOOPS, the most loops around a step, and DEVICE_OFFSETS, the most offsets that a kernel
   takes, and gives the tables of each network (DeviceNetwork) to device_create, device_run and device_destroy, which the
   host program of the language has. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef _WIN32
#include <windows.h>
#else
#include <dlfcn.h>
#include <unistd.h>
#endif

/* Statuses that no driver has. */
enum { DEVICE_NONE = -1001, DEVICE_NO_DRIVER = -1002, DEVICE_NO_MEMORY = -1003, DEVICE_UNFIT = -1004, DEVICE_FORKED = -1005 };
enum { DEVICE_UNWRITTEN = -1006, DEVICE_WRONG_SIZE = -1007, DEVICE_TOO_MANY = -1008 };
enum { DEVICE_CONSTANT, DEVICE_MUTABLE, DEVICE_ACTIVATIONS, DEVICE_REGIONS };
enum { DEVICE_GROUP = 64 };
enum { DEVICE_UPLOAD, DEVICE_DOWNLOAD, DEVICE_FIRST_STEP }; /* what each time of a timed run is of */
enum { DEVICE_NUMBER = 8 }; /* bytes of a number that the host reads between launches */

typedef struct DeviceQueue DeviceQueue;

typedef struct {
  const char *kernel;
  size_t threads;
  unsigned group; /* threads of a work group, of which there are whole ones; 0: any number will do */
  unsigned loops; /* around it, of which it takes the numbers of the iterations */
  const char *key; /* the same for equal kernels of all networks */
  unsigned images; /* those that it can read, as bits (OpenCL) */
  unsigned shared; /* bytes that a work group shares and that the host states (CUDA) */
  unsigned first_offset, offset_count; /* the offsets of operands that its kernel takes, in bytes */
} DeviceStep;

/* The threads of a work group of a step here, and the most that there can be. */
typedef struct {
  size_t group, largest;
} DeviceGroup;

typedef struct {
  size_t offset, size; /* in the mutable region */
} DevicePort;

typedef struct {
  int first;               /* the number of its first element in its region */
  int steps[DEVICE_LOOPS]; /* elements by which an iteration of each loop moves it */
} DeviceOperand;

/* The work of a step without pointers: a shader, operands, and whether it waits for the steps before. */
typedef struct {
  unsigned shader, first_operand, operand_count;
  int barrier;
} DeviceBinding;

typedef struct {
  const DeviceStep *steps;
  const int *offsets; /* those that kernels of several steps take */
  const DevicePort *inputs, *outputs;
  size_t step_count, input_count, output_count;
  size_t sizes[DEVICE_REGIONS];
  int (*launch)(DeviceQueue *);  /* queues all steps, those in loops as often as they run */
  int reads;                     /* whether it reads numbers between them, so that no run can be recorded before */
  int (*check)(const uint8_t *tensors); /* 0 if the sizes among the inputs are in their ranges; NULL: there are none */
  const DeviceBinding *bindings; /* of each step, in languages without pointers */
  const DeviceOperand *operands;
  const size_t *waited; /* the steps that each one waits for, and those that nothing waits for (CUDA); NULL: all do */
  const size_t *ends;   /* where those of each step end there, and at last all */
  int early;            /* whether kernels wait themselves for those that they depend on (CUDA) */
} DeviceNetwork;

static char device_message[2048];

/* Keeps a message, and returns the status. */
static int device_failed(int status, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(device_message, sizeof device_message, format, arguments);
  va_end(arguments);
  return status;
}

/* Whether a status is one of those above, whose message is kept already. */
static int device_is_own(int status) {
  return status <= DEVICE_NONE && status >= DEVICE_TOO_MANY;
}

/* Whether this process may call the driver: one that was forked has none of the driver's threads. */
static int device_may_call(void) {
#ifndef _WIN32
  static long process;
  if (process == 0) process = (long)getpid();
  if (process != (long)getpid()) {
    return device_failed(DEVICE_FORKED, "this process was forked from one that uses the device: drivers do not allow "
                         "that; run the network in one of them only, or start the other program by exec");
  }
#endif
  return 0;
}

/* The description of a device, in lines `word: text`. */
static const char *device_described(
    const char *name, const char *driver, const char *version, unsigned units, uint64_t memory) {
  static char text[1024];
  snprintf(text, sizeof text, "name: %s\ndriver: %s\nversion: %s\nunits: %u\nmemory: %llu\n", name, driver, version,
           units, (unsigned long long)memory);
  return text;
}

/* A shared library of the driver; a null pointer if there is none. */
static void *device_library(const char *name) {
#ifdef _WIN32
  return (void *)LoadLibraryA(name);
#else
  return dlopen(name, RTLD_NOW | RTLD_LOCAL);
#endif
}

/* Stores the address of a function at `function`; returns whether the library has it. */
static int device_function(void *library, const char *name, void *function) {
#ifdef _WIN32
  const FARPROC address = GetProcAddress((HMODULE)library, name);
#else
  void *const address = dlsym(library, name);
#endif
  memcpy(function, &address, sizeof address);
  return address != NULL;
}
