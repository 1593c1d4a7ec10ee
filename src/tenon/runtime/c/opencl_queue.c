/* Runs a network on an OpenCL device: one launch for each step, in the order of one queue.  It stands behind
   device_network.c. */

/* What is called of libOpenCL (OpenCL 1.2), whose objects are pointers. */
#define OPENCL_FUNCTIONS(F) \
  F(int, GetPlatformIDs, (unsigned count, void **platforms, unsigned *found)) \
  F(int, GetDeviceIDs, (void *platform, uint64_t kind, unsigned count, void **devices, unsigned *found)) \
  F(int, GetDeviceInfo, (void *device, unsigned what, size_t size, void *value, size_t *length)) \
  F(void *, CreateContext, (const intptr_t *properties, unsigned count, void *const *devices, void *notify, \
    void *data, int *status)) \
  F(void *, CreateCommandQueue, (void *context, void *device, uint64_t properties, int *status)) \
  F(void *, CreateProgramWithSource, (void *context, unsigned count, const char **texts, \
    const size_t *lengths, int *status)) \
  F(int, BuildProgram, (void *program, unsigned count, void *const *devices, const char *options, \
    void *notify, void *data)) \
  F(int, GetProgramBuildInfo, (void *program, void *device, unsigned what, size_t size, void *value, size_t *length)) \
  F(void *, CreateKernel, (void *program, const char *name, int *status)) \
  F(int, GetKernelWorkGroupInfo, (void *kernel, void *device, unsigned what, size_t size, void *value, \
    size_t *length)) \
  F(void *, CreateBuffer, (void *context, uint64_t flags, size_t size, void *from, int *status)) \
  F(int, SetKernelArg, (void *kernel, unsigned number, size_t size, const void *value)) \
  F(int, EnqueueNDRangeKernel, (void *queue, void *kernel, unsigned dimensions, const size_t *first, \
    const size_t *threads, const size_t *group, unsigned count, void *const *waits, void **event)) \
  F(int, EnqueueWriteBuffer, (void *queue, void *buffer, unsigned blocking, size_t offset, size_t size, \
    const void *from, unsigned count, void *const *waits, void **event)) \
  F(int, EnqueueReadBuffer, (void *queue, void *buffer, unsigned blocking, size_t offset, size_t size, \
    void *to, unsigned count, void *const *waits, void **event)) \
  F(int, Finish, (void *queue)) \
  F(int, WaitForEvents, (unsigned count, void *const *events)) \
  F(int, GetEventProfilingInfo, (void *event, unsigned what, size_t size, void *value, size_t *length)) \
  F(int, ReleaseEvent, (void *event)) \
  F(int, ReleaseKernel, (void *kernel)) \
  F(int, ReleaseProgram, (void *program)) \
  F(int, ReleaseMemObject, (void *buffer)) \
  F(int, ReleaseCommandQueue, (void *queue)) \
  F(int, ReleaseContext, (void *context))
#define OPENCL_MEMBER(result, name, parameters) result(*name) parameters;
#define OPENCL_FIND(result, name, parameters) device_function(library, "cl" #name, &cl.name) &&
static struct {
  OPENCL_FUNCTIONS(OPENCL_MEMBER)
} cl;

static int opencl_load(void) {
#ifdef _WIN32
  const char *name = "OpenCL.dll";
#else
  const char *name = "libOpenCL.so.1";
#endif
  void *library = device_library(name);
  if (library && OPENCL_FUNCTIONS(OPENCL_FIND) 1) return 0;
  return device_failed(DEVICE_NO_DRIVER, "there is no OpenCL: %s is not installed", name);
}

enum { OPENCL_NAME = 0x102b, OPENCL_DRIVER = 0x102d, OPENCL_VERSION = 0x102f };
enum { OPENCL_LARGEST_GROUP = 0x11b0 };
enum { OPENCL_UNITS = 0x1002, OPENCL_MEMORY = 0x101f };
enum { OPENCL_PROFILING = 2, OPENCL_STARTED = 0x1282, OPENCL_ENDED = 0x1283 };
enum { OPENCL_F32 = 0x101b, OPENCL_ROUNDED_QUOTIENTS = 128, OPENCL_BUILD_LOG = 0x1183 };
enum { OPENCL_GPU = 4, OPENCL_ANY_DEVICE = -1 };
enum { OPENCL_READ_WRITE = 1, OPENCL_READ_ONLY = 4, OPENCL_COPY = 32 };
enum { OPENCL_PLATFORMS = 16 };

struct DeviceQueue {
  const DeviceNetwork *network;
  void *device, *context, *queue, *program, *regions[DEVICE_REGIONS], **kernels;
  uint64_t *nanoseconds; /* of a timed run, whose commands give events */
  void *event;           /* of its last command */
};

/* The first device of that kind of any platform; a null pointer if there is none. */
static void *opencl_device_of(uint64_t kind) {
  void *platforms[OPENCL_PLATFORMS], *device;
  unsigned count = 0, found = 0;
  if (cl.GetPlatformIDs(OPENCL_PLATFORMS, platforms, &count) != 0) return NULL;
  for (unsigned i = 0; i < count && i < OPENCL_PLATFORMS; i++) {
    if (cl.GetDeviceIDs(platforms[i], kind, 1, &device, &found) == 0 && found > 0) return device;
  }
  return NULL;
}

/* A GPU if there is one, else another device; keeps a message if there is none. */
static int opencl_find(void **device) {
  int status = device_may_call();
  if (status == 0) status = opencl_load();
  if (status) return status;
  *device = opencl_device_of(OPENCL_GPU);
  if (!*device) *device = opencl_device_of((uint32_t)OPENCL_ANY_DEVICE);
  if (*device) return 0;
  return device_failed(DEVICE_NONE, "there is no OpenCL device: install the driver of one (Debian's pocl-opencl-icd "
                                    "runs on the processor)");
}

static const char *device_facts(void) {
  char name[256] = "", driver[256] = "", version[256] = "";
  unsigned units = 0;
  uint64_t memory = 0;
  void *device;
  if (opencl_find(&device)) return "";
  cl.GetDeviceInfo(device, OPENCL_NAME, sizeof name, name, NULL);
  cl.GetDeviceInfo(device, OPENCL_DRIVER, sizeof driver, driver, NULL);
  cl.GetDeviceInfo(device, OPENCL_VERSION, sizeof version, version, NULL);
  char *end = strchr(version, ' '); /* "OpenCL 3.0 and what the platform adds" */
  if (end && (end = strchr(end + 1, ' ')) != NULL) *end = 0;
  cl.GetDeviceInfo(device, OPENCL_UNITS, sizeof units, &units, NULL);
  cl.GetDeviceInfo(device, OPENCL_MEMORY, sizeof memory, &memory, NULL);
  return device_described(name, driver, version, units, memory);
}

/* Quotients and square roots are rounded as on processors, where the device can do it. */
static const char *opencl_options(void *device) {
  uint64_t abilities = 0;
  const int status = cl.GetDeviceInfo(device, OPENCL_F32, sizeof abilities, &abilities, NULL);
  return status == 0 && abilities & OPENCL_ROUNDED_QUOTIENTS ? "-cl-fp32-correctly-rounded-divide-sqrt" : "";
}

/* What the statuses mean that a correct program meets. */
static const char *opencl_meaning(int status) {
  switch (status) {
    case -2: return "the device is not available";
    case -4: return "there is not enough memory on the device";
    case -5: return "the device failed, or has too few resources";
    case -6: return "there is not enough memory";
    case -14: case -36: return "the device was lost";
    case -54: return "the device runs smaller groups of threads: the network was made for another one";
    case -61: return "a buffer is larger than the device takes";
    default: return "the driver failed";
  }
}

static int opencl_failed(int status, const char *doing) {
  const int is_memory = status == -4 || status == -6 || status == -61;
  device_failed(status, "OpenCL: %s (status %d while %s)", opencl_meaning(status), status, doing);
  return is_memory ? DEVICE_NO_MEMORY : status;
}

/* The compiler's report is the message. */
static int opencl_refused(const DeviceQueue *d, void *device, int status) {
  char report[sizeof device_message - 64] = "";
  cl.GetProgramBuildInfo(d->program, device, OPENCL_BUILD_LOG, sizeof report - 1, report, NULL);
  return device_failed(status, "the OpenCL compiler refuses the kernels (status %d): %s", status, report);
}

/* Threads of a group of a step. */
static size_t opencl_group(const DeviceStep *step) {
  return step->group ? step->group : DEVICE_GROUP;
}

/* Whether the device runs groups of that size of a kernel: fewer of those that need many registers. */
static int opencl_fits(const DeviceQueue *d, size_t step, void *device) {
  const DeviceStep *s = &d->network->steps[step];
  const size_t group = opencl_group(s);
  size_t largest = group;
  cl.GetKernelWorkGroupInfo(d->kernels[step], device, OPENCL_LARGEST_GROUP, sizeof largest, &largest, NULL);
  if (largest >= group || s->threads <= largest) return 0;
  return device_failed(DEVICE_UNFIT, "the OpenCL device runs %zu threads in a group of kernel %s, and the network has "
                       "%zu: it was made for another device", largest, s->kernel, group);
}

static int opencl_build(DeviceQueue *d, void *device) {
  int status = 0;
  char *text = device_kernels();
  if (!text) return device_failed(DEVICE_NO_MEMORY, "out of memory");
  d->program = cl.CreateProgramWithSource(d->context, 1, (const char **)&text, NULL, &status);
  free(text);
  if (status) return opencl_failed(status, "creating the program");
  status = cl.BuildProgram(d->program, 1, &device, opencl_options(device), NULL, NULL);
  if (status) return opencl_refused(d, device, status);
  for (size_t i = 0; status == 0 && i < d->network->step_count; i++) {
    d->kernels[i] = cl.CreateKernel(d->program, d->network->steps[i].kernel, &status);
    if (status) return opencl_failed(status, "creating the kernels");
    status = opencl_fits(d, i, device);
  }
  return status;
}

static int opencl_allocate(DeviceQueue *d, const uint8_t *weights) {
  int status = 0;
  for (unsigned i = 0; status == 0 && i < DEVICE_REGIONS; i++) {
    const size_t size = d->network->sizes[i];
    const int copied = i == DEVICE_CONSTANT && size > 0;
    const uint64_t flags = copied ? OPENCL_READ_ONLY | OPENCL_COPY : OPENCL_READ_WRITE;
    void *const from = copied ? (void *)(uintptr_t)weights : NULL;
    d->regions[i] = cl.CreateBuffer(d->context, flags, size ? size : 1, from, &status);
  }
  return status ? opencl_failed(status, "allocating memory of the device") : 0;
}

/* Every kernel takes the three regions. */
static int opencl_bind(DeviceQueue *d) {
  int status = 0;
  for (size_t i = 0; i < d->network->step_count; i++) {
    for (unsigned j = 0; status == 0 && j < DEVICE_REGIONS; j++) {
      status = cl.SetKernelArg(d->kernels[i], j, sizeof(void *), &d->regions[j]);
    }
  }
  return status ? opencl_failed(status, "binding the kernels") : 0;
}

static int queue_open(DeviceQueue *d, const uint8_t *weights) {
  int status = opencl_find(&d->device);
  if (status) return status;
  d->context = cl.CreateContext(NULL, 1, &d->device, NULL, NULL, &status);
  if (status == 0) d->queue = cl.CreateCommandQueue(d->context, d->device, 0, &status);
  if (status) return opencl_failed(status, "creating a queue");
  if ((status = opencl_build(d, d->device)) != 0) return status;
  if ((status = opencl_allocate(d, weights)) != 0) return status;
  return opencl_bind(d);
}

static void queue_close(DeviceQueue *d) {
  for (size_t i = 0; i < d->network->step_count; i++) {
    if (d->kernels[i]) cl.ReleaseKernel(d->kernels[i]);
  }
  for (unsigned i = 0; i < DEVICE_REGIONS; i++) {
    if (d->regions[i]) cl.ReleaseMemObject(d->regions[i]);
  }
  if (d->program) cl.ReleaseProgram(d->program);
  if (d->queue) cl.ReleaseCommandQueue(d->queue);
  if (d->context) cl.ReleaseContext(d->context);
}

/* Where a command leaves its event, in a timed run. */
static void **opencl_event(DeviceQueue *d) {
  return d->nanoseconds ? &d->event : NULL;
}

static int device_launch(DeviceQueue *d, size_t step, const int *iterations) {
  const size_t threads = d->network->steps[step].threads, group = opencl_group(&d->network->steps[step]);
  const size_t whole = (threads + group - 1) / group * group; /* the kernel leaves out what is too much */
  void **const event = opencl_event(d);
  for (unsigned i = 0; i < d->network->steps[step].loops; i++) {
    const int status = cl.SetKernelArg(d->kernels[step], DEVICE_REGIONS + i, sizeof(int), &iterations[i]);
    if (status) return status;
  }
  if (threads < group) {
    return cl.EnqueueNDRangeKernel(d->queue, d->kernels[step], 1, NULL, &threads, NULL, 0, NULL, event);
  }
  return cl.EnqueueNDRangeKernel(d->queue, d->kernels[step], 1, NULL, &whole, &group, 0, NULL, event);
}

/* In a timed run: waits for the last command, and adds its time by the device's clock. */
static int queue_stamp(DeviceQueue *d, size_t slot) {
  uint64_t started = 0, ended = 0;
  if (!d->nanoseconds) return 0;
  int status = cl.WaitForEvents(1, &d->event);
  if (status == 0) status = cl.GetEventProfilingInfo(d->event, OPENCL_STARTED, sizeof started, &started, NULL);
  if (status == 0) status = cl.GetEventProfilingInfo(d->event, OPENCL_ENDED, sizeof ended, &ended, NULL);
  cl.ReleaseEvent(d->event);
  d->nanoseconds[slot] += ended - started;
  return status;
}

static int opencl_upload(DeviceQueue *d, const uint8_t *tensors, const DevicePort *p) {
  void *device = d->regions[DEVICE_MUTABLE], **const event = opencl_event(d);
  if (p->size == 0) return 0;
  const int status =
      cl.EnqueueWriteBuffer(d->queue, device, 0, p->offset, p->size, tensors + p->offset, 0, NULL, event);
  return status ? status : queue_stamp(d, DEVICE_UPLOAD);
}

static int opencl_download(DeviceQueue *d, uint8_t *tensors, const DevicePort *p) {
  void *device = d->regions[DEVICE_MUTABLE], **const event = opencl_event(d);
  if (p->size == 0) return 0;
  const int status = cl.EnqueueReadBuffer(d->queue, device, 0, p->offset, p->size, tensors + p->offset, 0, NULL, event);
  return status ? status : queue_stamp(d, DEVICE_DOWNLOAD);
}

static int device_run(DeviceQueue *d, uint8_t *tensors) {
  const DeviceNetwork *n = d->network;
  int status = 0;
  for (size_t i = 0; status == 0 && i < n->input_count; i++) status = opencl_upload(d, tensors, &n->inputs[i]);
  if (status == 0) status = n->launch(d);
  for (size_t i = 0; status == 0 && i < n->output_count; i++) status = opencl_download(d, tensors, &n->outputs[i]);
  const int finished = cl.Finish(d->queue);
  if (status == 0) status = finished;
  return status ? opencl_failed(status, "running the network") : 0;
}

/* By a queue of its own, whose commands are timed. */
static int device_timed_run(DeviceQueue *d, uint8_t *tensors, uint64_t *nanoseconds) {
  int status = 0;
  void *const usual = d->queue;
  void *const timed = cl.CreateCommandQueue(d->context, d->device, OPENCL_PROFILING, &status);
  if (status) return opencl_failed(status, "creating a queue that times kernels");
  d->queue = timed;
  d->nanoseconds = nanoseconds;
  status = device_run(d, tensors);
  d->nanoseconds = NULL;
  d->queue = usual;
  cl.ReleaseCommandQueue(timed);
  return status;
}
