/* An OpenCL library with one device that computes nothing, and fails as TEST_OPENCL_FAULT says:

   "no memory"     buffers cannot be made
   "too large"     the same, because the device takes none of that size
   "refused"       the compiler refuses the kernels
   "lost"          the device is lost during the first run, and works again after
   "lost for good" the same, for ever
   "small groups"  it runs 16 threads in a group at most
   "no device"     there is a platform without a device */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static int object;
static int lost;

static int has(const char *fault) {
  const char *wanted = getenv("TEST_OPENCL_FAULT");
  return wanted != NULL && strcmp(wanted, fault) == 0;
}

static void *made(int error, int *status) {
  if (status) *status = error;
  return error ? NULL : &object;
}

static int text(const char *from, size_t size, void *value, size_t *length) {
  if (length) *length = strlen(from) + 1;
  if (value && size > strlen(from)) strcpy(value, from);
  return 0;
}

int clGetPlatformIDs(unsigned count, void **platforms, unsigned *found) {
  if (count) platforms[0] = &object;
  if (found) *found = 1;
  return 0;
}

int clGetDeviceIDs(void *platform, uint64_t kind, unsigned count, void **devices, unsigned *found) {
  (void)platform, (void)kind;
  if (has("no device")) return -1;
  if (count) devices[0] = &object;
  if (found) *found = 1;
  return 0;
}

int clGetDeviceInfo(void *device, unsigned what, size_t size, void *value, size_t *length) {
  (void)device;
  if (what == 0x102b) return text("Stand-in", size, value, length);
  if (what == 0x102d || what == 0x102f) return text("1.2.3", size, value, length);
  if (value) memset(value, 0, size);
  return 0;
}

void *clCreateContext(const intptr_t *p, unsigned n, void *const *d, void *f, void *data, int *status) {
  (void)p, (void)n, (void)d, (void)f, (void)data;
  return made(0, status);
}

void *clCreateCommandQueue(void *context, void *device, uint64_t properties, int *status) {
  (void)context, (void)device, (void)properties;
  return made(0, status);
}

void *clCreateProgramWithSource(void *context, unsigned n, const char **texts, const size_t *lengths, int *status) {
  (void)context, (void)n, (void)texts, (void)lengths;
  return made(0, status);
}

int clBuildProgram(void *program, unsigned n, void *const *devices, const char *options, void *notify, void *data) {
  (void)program, (void)n, (void)devices, (void)options, (void)notify, (void)data;
  return has("refused") ? -11 : 0;
}

int clGetProgramBuildInfo(void *program, void *device, unsigned what, size_t size, void *value, size_t *length) {
  (void)program, (void)device, (void)what;
  return text("line 7: the register file is full", size, value, length);
}

void *clCreateKernel(void *program, const char *name, int *status) {
  (void)program, (void)name;
  return made(0, status);
}

int clGetKernelWorkGroupInfo(void *kernel, void *device, unsigned what, size_t size, void *value, size_t *length) {
  (void)kernel, (void)device, (void)what, (void)size, (void)length;
  *(size_t *)value = has("small groups") ? 16 : 1024;
  return 0;
}

void *clCreateBuffer(void *context, uint64_t flags, size_t size, void *from, int *status) {
  (void)context, (void)flags, (void)size, (void)from;
  return made(has("no memory") ? -4 : has("too large") ? -61 : 0, status);
}

int clSetKernelArg(void *kernel, unsigned number, size_t size, const void *value) {
  (void)kernel, (void)number, (void)size, (void)value;
  return 0;
}

int clEnqueueNDRangeKernel(void *q, void *k, unsigned d, const size_t *f, const size_t *t, const size_t *g, unsigned n,
                           void *const *w, void **event) {
  (void)q, (void)k, (void)d, (void)f, (void)t, (void)g, (void)n, (void)w;
  if (event) *event = &object;
  return 0;
}

int clEnqueueWriteBuffer(void *q, void *b, unsigned blocking, size_t at, size_t size, const void *from, unsigned n,
                         void *const *w, void **event) {
  (void)q, (void)b, (void)blocking, (void)at, (void)size, (void)from, (void)n, (void)w;
  if (event) *event = &object;
  return 0;
}

int clEnqueueReadBuffer(void *q, void *b, unsigned blocking, size_t at, size_t size, void *to, unsigned n,
                        void *const *w, void **event) {
  (void)q, (void)b, (void)blocking, (void)at, (void)size, (void)to, (void)n, (void)w;
  if (event) *event = &object;
  return 0;
}

int clFinish(void *queue) {
  (void)queue;
  return has("lost for good") || (has("lost") && lost++ == 0) ? -36 : 0;
}

int clWaitForEvents(unsigned count, void *const *events) { return (void)count, (void)events, 0; }

int clGetEventProfilingInfo(void *event, unsigned what, size_t size, void *value, size_t *length) {
  (void)event, (void)size, (void)length;
  *(uint64_t *)value = what;
  return 0;
}

int clReleaseEvent(void *object_) { return (void)object_, 0; }
int clReleaseKernel(void *object_) { return (void)object_, 0; }
int clReleaseProgram(void *object_) { return (void)object_, 0; }
int clReleaseMemObject(void *object_) { return (void)object_, 0; }
int clReleaseCommandQueue(void *object_) { return (void)object_, 0; }
int clReleaseContext(void *object_) { return (void)object_, 0; }
