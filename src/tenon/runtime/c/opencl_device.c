/* The device of OpenCL that networks run on, and what its statuses mean.  It stands behind opencl_hints.c. */
enum { OPENCL_NAME = 0x102b, OPENCL_DRIVER = 0x102d, OPENCL_VERSION = 0x102f };
enum { OPENCL_LARGEST_GROUP = 0x11b0 };
enum { OPENCL_UNITS = 0x1002, OPENCL_MEMORY = 0x101f };
enum { OPENCL_PROFILING = 2, OPENCL_STARTED = 0x1282, OPENCL_ENDED = 0x1283 };
enum { OPENCL_F32 = 0x101b, OPENCL_ROUNDED_QUOTIENTS = 128, OPENCL_BUILD_LOG = 0x1183 };
enum { OPENCL_BINARY_SIZES = 0x1165, OPENCL_BINARIES = 0x1166 };
enum { OPENCL_GPU = 4, OPENCL_ANY_DEVICE = -1 };
enum { OPENCL_READ_WRITE = 1, OPENCL_READ_ONLY = 4, OPENCL_COPY = 32 };
enum { OPENCL_PLATFORMS = 16 };
enum { OPENCL_SECOND = DEVICE_REGIONS, OPENCL_OBJECTS, OPENCL_KINDS = 4, OPENCL_IMAGES = OPENCL_OBJECTS * OPENCL_KINDS };

/* How a step is launched here. */
typedef struct {
  unsigned slices;  /* launches that it is cut into */
  uint64_t longest; /* nanoseconds of its longest launch, in a run that measures them */
} OpenclStep;

struct DeviceQueue {
  const DeviceNetwork *network;
  DeviceOptions options;
  void *device, *context, *queue, *program, *regions[DEVICE_REGIONS], **kernels;
  char name[256];
  DeviceGroup *groups; /* of each step */
  OpenclStep *steps;
  const OpenclQuirk *quirk;
  DeviceImages images_read;
  char build_options[128];
  void *second, *images[OPENCL_IMAGES]; /* the second object of activations; images by their numbers */
  unsigned queued;       /* launches since the queue was flushed or waited for */
  int is_tuned;          /* the sizes of groups are chosen, if they are to be */
  int is_measured;       /* the times of launches are known, if they are limited */
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

/* Texts for the statuses that a correct program meets. */
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
  if (device_is_own(status)) return status;
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
