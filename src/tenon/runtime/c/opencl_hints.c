/* Requests to OpenCL drivers besides the standard: how fast and how urgent, and what some of them need.  It stands
   behind opencl_api.c. */
enum { OPENCL_EXTENSIONS = 0x1030 };
/* cl_qcom_perf_hint and cl_qcom_priority_hint (cl_ext.h of Khronos): properties of a context; high, normal and low follow
   each other. */
enum { OPENCL_PERFORMANCE = 0x40c2, OPENCL_PERFORMANCE_HIGH = 0x40c3, OPENCL_PRIORITY = 0x40c9, OPENCL_PRIORITY_HIGH = 0x40ca };
/* cl_khr_priority_hints: a property of a queue; bits for high, normal and low. */
enum { OPENCL_QUEUE_PROPERTIES = 0x1093, OPENCL_QUEUE_PRIORITY = 0x1096 };

/* Drivers that need something of their own, by a part of the device's name. */
typedef struct {
  const char *device;
  unsigned flush_every; /* launches after which the queue is flushed; 0: at the end of a run */
  unsigned hints_from;  /* the major version of OpenCL from which on it takes hints for a context */
  DeviceImages images;  /* what is read faster from images */
} OpenclQuirk;

static const OpenclQuirk opencl_quirks[] = {
    /* The GPU delegate of TensorFlow Lite flushes after 24 launches on these (tensorflow/lite/delegates/gpu/cl/
       inference_context.cc): the driver holds launches back. */
    {"Mali", 24, 0, DEVICE_NO_IMAGES},
    /* MACE gives hints only to drivers of OpenCL 2.0 (mace/core/runtime/opencl/opencl_runtime.cc).  Images are read
       through the cache of textures, buffers are not (Qualcomm, "Snapdragon Mobile Platform OpenCL General Programming
       and Optimization", on memory); MACE's activations are images there, too (GPUContextBuilder's usual type of
       memory, mace/core/runtime/opencl). */
    {"Adreno", 0, 2, DEVICE_ALL_IMAGES},
    {"", 0, 0, DEVICE_NO_IMAGES},
};

static const OpenclQuirk *opencl_quirk(const char *device) {
  const OpenclQuirk *quirk = opencl_quirks;
  while (!strstr(device, quirk->device)) quirk++;
  return quirk;
}

static int opencl_extends(const char *extensions, const char *name) {
  const size_t length = strlen(name);
  for (const char *at = strstr(extensions, name); at; at = strstr(at + length, name)) {
    if ((at == extensions || at[-1] == ' ') && (at[length] == ' ' || at[length] == 0)) return 1;
  }
  return 0;
}

/* The text of a fact of the device, to be freed; NULL without memory. */
static char *opencl_text(void *device, unsigned what) {
  size_t size = 0;
  cl.GetDeviceInfo(device, what, 0, NULL, &size);
  char *text = calloc(1, size + 1);
  if (text) cl.GetDeviceInfo(device, what, size, text, NULL);
  return text;
}

/* Pairs of a property and its value, and 0, for clCreateContext. */
typedef struct {
  intptr_t words[5];
} OpenclContext;

static OpenclContext opencl_context(const DeviceOptions *o, const OpenclQuirk *quirk, const char *extensions,
                                    const char *version) {
  OpenclContext made = {{0}};
  intptr_t *next = made.words;
  const unsigned major = strncmp(version, "OpenCL ", 7) == 0 ? (unsigned)strtoul(version + 7, NULL, 10) : 0;
  if (major < quirk->hints_from) return made;
  if (o->performance != DEVICE_USUAL && opencl_extends(extensions, "cl_qcom_perf_hint")) {
    *next++ = OPENCL_PERFORMANCE;
    *next++ = OPENCL_PERFORMANCE_HIGH + (DEVICE_HIGH - (int)o->performance);
  }
  if (o->priority != DEVICE_USUAL && opencl_extends(extensions, "cl_qcom_priority_hint")) {
    *next++ = OPENCL_PRIORITY;
    *next++ = OPENCL_PRIORITY_HIGH + (DEVICE_HIGH - (int)o->priority);
  }
  return made;
}

/* A queue of the wanted priority where the driver has such (OpenCL 2.0), else the usual one. */
static void *opencl_queue(const DeviceOptions *o, const char *extensions, void *context, void *device, int *status) {
  void *(*create)(void *, void *, const uint64_t *, int *) = NULL;
  const uint64_t words[] = {OPENCL_QUEUE_PRIORITY, (uint64_t)1 << (DEVICE_HIGH - (int)o->priority), 0};
  const int is_asked = o->priority != DEVICE_USUAL && opencl_extends(extensions, "cl_khr_priority_hints");
  if (is_asked && device_function(opencl_library, "clCreateCommandQueueWithProperties", &create)) {
    void *queue = create(context, device, words, status);
    if (queue && *status == 0) return queue;
  }
  return cl.CreateCommandQueue(context, device, 0, status);
}
