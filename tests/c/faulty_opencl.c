/* An OpenCL library with one device that computes nothing, and fails as TEST_OPENCL_FAULT says:

   "no memory"     buffers cannot be made
   "too large"     the same, because the device takes none of that size
   "refused"       the compiler refuses the kernels
   "lost"          the device is lost during the first run, and works again after
   "lost for good" the same, for ever
   "small groups"  it runs 16 threads in a group at most
   "no device"     there is a platform without a device
   "other code"    compiled kernels are refused

   TEST_OPENCL_LOG is a file for a line of each call that tests look at.  TEST_OPENCL_NAME, _DRIVER, _VERSION and _EXTENSIONS
   are texts of the device, and TEST_OPENCL_TIME nanoseconds of a launch for each of its threads. */
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int object;
static int lost;
static uint64_t threads_launched;
static const char code[] = "compiled kernels";

static void called(const char *format, ...) {
  const char *path = getenv("TEST_OPENCL_LOG");
  FILE *file = path ? fopen(path, "a") : NULL;
  va_list arguments;
  if (!file) return;
  va_start(arguments, format);
  vfprintf(file, format, arguments);
  va_end(arguments);
  fclose(file);
}

static const char *given(const char *name, const char *usual) { return getenv(name) ? getenv(name) : usual; }

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
  if (what == 0x102b) return text(given("TEST_OPENCL_NAME", "Stand-in"), size, value, length);
  if (what == 0x102d) return text(given("TEST_OPENCL_DRIVER", "1.2.3"), size, value, length);
  if (what == 0x102f) return text(given("TEST_OPENCL_VERSION", "1.2.3"), size, value, length);
  if (what == 0x1030) return text(given("TEST_OPENCL_EXTENSIONS", ""), size, value, length);
  if (value) memset(value, 0, size);
  if (what == 0x1016) *(unsigned *)value = !has("no images");
  if (what == 0x1040) *(size_t *)value = has("small images") ? 1 << 14 : 1 << 20;
  return 0;
}

void *clCreateContext(const intptr_t *p, unsigned n, void *const *d, void *f, void *data, int *status) {
  (void)n, (void)d, (void)f, (void)data;
  for (; p && *p; p += 2) called("context %#x %#x\n", (unsigned)p[0], (unsigned)p[1]);
  return made(0, status);
}

void *clCreateCommandQueueWithProperties(void *context, void *device, const uint64_t *p, int *status) {
  (void)context, (void)device;
  for (; p && *p; p += 2) called("queue %#x %#x\n", (unsigned)p[0], (unsigned)p[1]);
  return made(0, status);
}

void *clCreateCommandQueue(void *context, void *device, uint64_t properties, int *status) {
  (void)context, (void)device, (void)properties;
  return made(0, status);
}

void *clCreateProgramWithSource(void *context, unsigned n, const char **texts, const size_t *lengths, int *status) {
  (void)context, (void)n, (void)texts, (void)lengths;
  called("source\n");
  return made(0, status);
}

void *clCreateProgramWithBinary(void *context, unsigned n, void *const *devices, const size_t *sizes,
                                const uint8_t *const *binaries, int *each, int *status) {
  (void)context, (void)n, (void)devices;
  const int good = sizes[0] == sizeof code && memcmp(binaries[0], code, sizeof code) == 0 && !has("other code");
  called("binary\n");
  *each = good ? 0 : -42;
  return made(*each, status);
}

int clGetProgramInfo(void *program, unsigned what, size_t size, void *value, size_t *length) {
  (void)program, (void)size, (void)length;
  if (what == 0x1165) *(size_t *)value = sizeof code;
  else memcpy(*(uint8_t **)value, code, sizeof code);
  return 0;
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

void *clCreateImage(void *context, uint64_t flags, const void *format, const void *about, void *from, int *status) {
  const struct {
    unsigned type;
    size_t width;
  } *image = about;
  (void)context, (void)flags, (void)from;
  called("image %#x %zu\n", ((const unsigned *)format)[1], image->width);
  return made(0, status);
}

int clSetKernelArg(void *kernel, unsigned number, size_t size, const void *value) {
  (void)kernel, (void)number, (void)size, (void)value;
  return 0;
}

int clEnqueueNDRangeKernel(void *q, void *k, unsigned d, const size_t *f, const size_t *t, const size_t *g, unsigned n,
                           void *const *w, void **event) {
  (void)q, (void)k, (void)d, (void)n, (void)w;
  called("launch %zu %zu %zu\n", f ? *f : 0, *t, g ? *g : 0);
  threads_launched = *t;
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

int clFlush(void *queue) {
  (void)queue;
  called("flush\n");
  return 0;
}

int clFinish(void *queue) {
  (void)queue;
  called("finish\n");
  return has("lost for good") || (has("lost") && lost++ == 0) ? -36 : 0;
}

int clWaitForEvents(unsigned count, void *const *events) { return (void)count, (void)events, 0; }

int clGetEventProfilingInfo(void *event, unsigned what, size_t size, void *value, size_t *length) {
  (void)event, (void)size, (void)length;
  *(uint64_t *)value = what == 0x1283 ? threads_launched * strtoull(given("TEST_OPENCL_TIME", "1"), NULL, 10) : 0;
  return 0;
}

int clReleaseEvent(void *object_) { return (void)object_, 0; }
int clReleaseKernel(void *object_) { return (void)object_, 0; }
int clReleaseProgram(void *object_) { return (void)object_, 0; }
int clReleaseMemObject(void *object_) { return (void)object_, 0; }
int clReleaseCommandQueue(void *object_) { return (void)object_, 0; }
int clReleaseContext(void *object_) { return (void)object_, 0; }
