/* The CUDA device that networks run on, and what its statuses mean.  It stands behind cuda_api.c. */

enum { CUDA_ERROR_LOG = 5, CUDA_ERROR_LOG_SIZE = 6, CUDA_PTX = 1, CUDA_NON_BLOCKING = 1, CUDA_CAPTURE_OF_THREAD = 1 };
enum { CUDA_NO_MEMORY = 2, CUDA_NO_BINARY = 209, CUDA_INVALID_PTX = 218, CUDA_NEWER_PTX = 222 };
enum { CUDA_LARGEST_GROUP = 0, CUDA_SHARED_BYTES = 8 }; /* attributes of kernels */
enum { CUDA_UNITS = 16, CUDA_MAJOR = 75, CUDA_MINOR = 76 };
enum { CUDA_BEHIND_THESE_ONLY = 1 }; /* what is recorded next */
enum { CUDA_EXTERNAL_EVENT = 1 }; /* recorded by each launch of a graph */
static const size_t CUDA_IDLE = SIZE_MAX; /* the slot of the time until the next command */

/* The record of a timed run: an event behind each command, and what its time is of. */
typedef struct {
  void *event;
  size_t slot;
} CudaStamp;

/* The state of a graph while launches are recorded that do not all wait for those before: the nodes of the steps, what
   they stand behind (NULL: nothing), and room for those that one waits for. */
typedef struct {
  void **steps, *first, **waited;
} CudaNodes;

struct DeviceQueue {
  const DeviceNetwork *network;
  DeviceOptions options;
  int device;
  char name[288]; /* of the device in files of groups, which OpenCL has sections of its own in */
  DeviceGroup *groups; /* of each step */
  int is_tuned;        /* the sizes of groups are chosen, if they are to be */
  void *context, *module, *stream, *graph, **kernels;
  uint64_t regions[DEVICE_REGIONS];
  void *timed;  /* the graph of a timed run, with its events */
  void *inside; /* that of a run without copies from and to the host */
  void *queued; /* an event behind the last run on a stream of the caller's */
  CudaNodes nodes;
  CudaStamp *stamps;
  size_t stamp_count, stamp_room, event_count; /* events are kept for the next timed run */
  int stamping;   /* while a timed run is recorded or queued */
  uint8_t *ports; /* the mutable region, and a number, in memory that the device can copy from and to by itself */
};

static int cuda_failed(int status, const char *doing) {
  const char *text = NULL;
  if (device_is_own(status)) return status;
  cu.GetErrorString(status, &text);
  device_failed(status, "CUDA: %s (status %d) while %s", text ? text : "unknown error", status, doing);
  return status == CUDA_NO_MEMORY ? DEVICE_NO_MEMORY : status;
}

static int cuda_find(int *device) {
  int status = device_may_call();
  if (status == 0) status = cuda_load();
  if (status) return status;
  status = cu.Init(0);
  if (status == 0) status = cu.DeviceGet(device, 0);
  return status ? cuda_failed(status, "looking for a CUDA device") : 0;
}

typedef struct {
  char name[256], driver[32], version[64];
} CudaFacts;

static CudaFacts cuda_facts(int device) {
  CudaFacts facts = {"", "", ""};
  int number = 0, major = 0, minor = 0;
  cu.DeviceGetName(facts.name, sizeof facts.name, device);
  cu.DriverGetVersion(&number);
  cu.DeviceGetAttribute(&major, CUDA_MAJOR, device);
  cu.DeviceGetAttribute(&minor, CUDA_MINOR, device);
  snprintf(facts.driver, sizeof facts.driver, "CUDA %d.%d", number / 1000, number % 1000 / 10);
  snprintf(facts.version, sizeof facts.version, "compute capability %d.%d", major, minor);
  return facts;
}

static const char *device_facts(void) {
  int device, units = 0;
  size_t memory = 0;
  if (cuda_find(&device)) return "";
  const CudaFacts facts = cuda_facts(device);
  cu.DeviceGetAttribute(&units, CUDA_UNITS, device);
  cu.DeviceTotalMem_v2(&memory, device);
  return device_described(facts.name, facts.driver, facts.version, (unsigned)units, memory);
}
