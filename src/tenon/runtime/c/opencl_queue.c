/* Runs a network on an OpenCL device: one launch for each step, in the order of one queue.

   The generated file in which this text stands includes the bundle's header, defines `opencl_text`, the kernels, and
   gives the tables of each network (OpenCLNetwork) to the three functions at the end. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/* What is called of libOpenCL (OpenCL 1.2), whose objects are pointers. */
int clGetPlatformIDs(unsigned count, void **platforms, unsigned *found);
int clGetDeviceIDs(void *platform, uint64_t kind, unsigned count, void **devices, unsigned *found);
int clGetDeviceInfo(void *device, unsigned what, size_t size, void *value, size_t *length);
void *clCreateContext(const intptr_t *properties, unsigned count, void *const *devices, void *notify, void *data,
                      int *status);
void *clCreateCommandQueue(void *context, void *device, uint64_t properties, int *status);
void *clCreateProgramWithSource(void *context, unsigned count, const char **texts, const size_t *lengths, int *status);
int clBuildProgram(void *program, unsigned count, void *const *devices, const char *options, void *notify, void *data);
void *clCreateKernel(void *program, const char *name, int *status);
void *clCreateBuffer(void *context, uint64_t flags, size_t size, void *from, int *status);
int clSetKernelArg(void *kernel, unsigned number, size_t size, const void *value);
int clEnqueueNDRangeKernel(void *queue, void *kernel, unsigned dimensions, const size_t *first, const size_t *threads,
                           const size_t *group, unsigned count, void *const *waits, void **event);
int clEnqueueWriteBuffer(void *queue, void *buffer, unsigned blocking, size_t offset, size_t size, const void *from,
                         unsigned count, void *const *waits, void **event);
int clEnqueueReadBuffer(void *queue, void *buffer, unsigned blocking, size_t offset, size_t size, void *to,
                        unsigned count, void *const *waits, void **event);
int clFinish(void *queue);
int clReleaseKernel(void *kernel);
int clReleaseProgram(void *program);
int clReleaseMemObject(void *buffer);
int clReleaseCommandQueue(void *queue);
int clReleaseContext(void *context);

enum { OPENCL_F32 = 0x101b, OPENCL_ROUNDED_QUOTIENTS = 128 };
enum { OPENCL_GPU = 4, OPENCL_ANY_DEVICE = -1 };
enum { OPENCL_READ_WRITE = 1, OPENCL_READ_ONLY = 4, OPENCL_COPY = 32 };
enum { OPENCL_NO_DEVICE = -1, OPENCL_NO_HOST_MEMORY = -6 };
enum { OPENCL_CONSTANT, OPENCL_MUTABLE, OPENCL_ACTIVATIONS, OPENCL_REGIONS };
enum { OPENCL_PLATFORMS = 16, OPENCL_GROUP = 64 };

typedef struct {
  const char *kernel;
  size_t threads;
} OpenCLStep;

typedef struct {
  size_t offset, size; /* in the mutable region */
} OpenCLPort;

typedef struct {
  const OpenCLStep *steps;
  const OpenCLPort *inputs, *outputs;
  size_t step_count, input_count, output_count;
  size_t sizes[OPENCL_REGIONS];
} OpenCLNetwork;

typedef struct {
  const OpenCLNetwork *network;
  void *context, *queue, *program, *regions[OPENCL_REGIONS], **kernels;
} OpenCLDevice;

/* The first device of that kind of any platform; a null pointer if there is none. */
static void *opencl_device_of(uint64_t kind) {
  void *platforms[OPENCL_PLATFORMS], *device;
  unsigned count = 0, found = 0;
  if (clGetPlatformIDs(OPENCL_PLATFORMS, platforms, &count) != 0) return NULL;
  for (unsigned i = 0; i < count && i < OPENCL_PLATFORMS; i++) {
    if (clGetDeviceIDs(platforms[i], kind, 1, &device, &found) == 0 && found > 0) return device;
  }
  return NULL;
}

/* Quotients and square roots are rounded as on processors, where the device can do it. */
static const char *opencl_options(void *device) {
  uint64_t abilities = 0;
  const int status = clGetDeviceInfo(device, OPENCL_F32, sizeof abilities, &abilities, NULL);
  return status == 0 && abilities & OPENCL_ROUNDED_QUOTIENTS ? "-cl-fp32-correctly-rounded-divide-sqrt" : "";
}

static int opencl_build(OpenCLDevice *d, void *device) {
  int status = 0;
  d->program = clCreateProgramWithSource(d->context, sizeof opencl_text / sizeof opencl_text[0], opencl_text, NULL,
                                         &status);
  if (status == 0) status = clBuildProgram(d->program, 1, &device, opencl_options(device), NULL, NULL);
  for (size_t i = 0; status == 0 && i < d->network->step_count; i++) {
    d->kernels[i] = clCreateKernel(d->program, d->network->steps[i].kernel, &status);
  }
  return status;
}

static int opencl_allocate(OpenCLDevice *d, const uint8_t *weights) {
  int status = 0;
  for (unsigned i = 0; status == 0 && i < OPENCL_REGIONS; i++) {
    const size_t size = d->network->sizes[i];
    const int copied = i == OPENCL_CONSTANT && size > 0;
    const uint64_t flags = copied ? OPENCL_READ_ONLY | OPENCL_COPY : OPENCL_READ_WRITE;
    d->regions[i] = clCreateBuffer(d->context, flags, size ? size : 1, copied ? (void *)(uintptr_t)weights : NULL,
                                   &status);
  }
  return status;
}

/* Every kernel takes the three regions. */
static int opencl_bind(OpenCLDevice *d) {
  int status = 0;
  for (size_t i = 0; i < d->network->step_count; i++) {
    for (unsigned j = 0; status == 0 && j < OPENCL_REGIONS; j++) {
      status = clSetKernelArg(d->kernels[i], j, sizeof(void *), &d->regions[j]);
    }
  }
  return status;
}

static int opencl_open(OpenCLDevice *d, const uint8_t *weights) {
  int status = 0;
  void *device = opencl_device_of(OPENCL_GPU);
  if (!device) device = opencl_device_of((uint32_t)OPENCL_ANY_DEVICE);
  if (!device) return OPENCL_NO_DEVICE;
  d->context = clCreateContext(NULL, 1, &device, NULL, NULL, &status);
  if (status == 0) d->queue = clCreateCommandQueue(d->context, device, 0, &status);
  if (status == 0) status = opencl_build(d, device);
  if (status == 0) status = opencl_allocate(d, weights);
  return status ? status : opencl_bind(d);
}

static void opencl_destroy(OpenCLDevice *d) {
  if (!d) return;
  for (size_t i = 0; i < d->network->step_count; i++) {
    if (d->kernels[i]) clReleaseKernel(d->kernels[i]);
  }
  for (unsigned i = 0; i < OPENCL_REGIONS; i++) {
    if (d->regions[i]) clReleaseMemObject(d->regions[i]);
  }
  if (d->program) clReleaseProgram(d->program);
  if (d->queue) clReleaseCommandQueue(d->queue);
  if (d->context) clReleaseContext(d->context);
  free(d->kernels);
  free(d);
}

static OpenCLDevice *opencl_create(const OpenCLNetwork *network, const uint8_t *weights, int *status) {
  OpenCLDevice *d = malloc(sizeof *d);
  void **kernels = malloc((network->step_count + 1) * sizeof *kernels);
  if (!d || !kernels) {
    free(d);
    free(kernels);
    *status = OPENCL_NO_HOST_MEMORY;
    return NULL;
  }
  for (size_t i = 0; i < network->step_count; i++) kernels[i] = NULL;
  *d = (OpenCLDevice){network, NULL, NULL, NULL, {NULL, NULL, NULL}, kernels};
  *status = opencl_open(d, weights);
  if (*status == 0) return d;
  opencl_destroy(d);
  return NULL;
}

static int opencl_launch(const OpenCLDevice *d, size_t step) {
  const size_t threads = d->network->steps[step].threads, group = OPENCL_GROUP;
  const size_t whole = (threads + group - 1) / group * group; /* the kernel leaves out what is too much */
  if (threads < group) {
    return clEnqueueNDRangeKernel(d->queue, d->kernels[step], 1, NULL, &threads, NULL, 0, NULL, NULL);
  }
  return clEnqueueNDRangeKernel(d->queue, d->kernels[step], 1, NULL, &whole, &group, 0, NULL, NULL);
}

static int opencl_run(OpenCLDevice *d, uint8_t *tensors) {
  const OpenCLNetwork *n = d->network;
  void *device = d->regions[OPENCL_MUTABLE];
  int status = 0;
  for (size_t i = 0; status == 0 && i < n->input_count; i++) {
    const OpenCLPort *p = &n->inputs[i];
    if (p->size) {
      status = clEnqueueWriteBuffer(d->queue, device, 0, p->offset, p->size, tensors + p->offset, 0, NULL, NULL);
    }
  }
  for (size_t i = 0; status == 0 && i < n->step_count; i++) status = opencl_launch(d, i);
  for (size_t i = 0; status == 0 && i < n->output_count; i++) {
    const OpenCLPort *p = &n->outputs[i];
    if (p->size) {
      status = clEnqueueReadBuffer(d->queue, device, 0, p->offset, p->size, tensors + p->offset, 0, NULL, NULL);
    }
  }
  const int finished = clFinish(d->queue);
  return status ? status : finished;
}
