/* A CUDA driver whose device is the processor's memory, and whose only kernel copies: TEST_CUDA_KERNEL is "FROM TO BYTES", in
   the mutable region.  It fails as TEST_CUDA_FAULT says:

   "no device"     there is none
   "no memory"     memory of the device cannot be allocated
   "refused"       the compiler refuses the kernels
   "lost"          the first run fails, and the device works again after
   "lost for good" the same, for ever
   "other code"    compiled kernels are refused

   TEST_CUDA_LOG is a file for a line of each call that tests look at.  It is compiled twice, as faulty_vulkan.c. */
#include <stdarg.h>

enum { DEVICE_LOOPS = 1 };
#include "device_network.c"
#include "cuda_api.c"

#define DEFINE(name, parameters) int cu##name parameters
#ifdef TEST_DEFAULTS
#define F(name, parameters) \
  __attribute__((weak)) int cu##name parameters { return 0; }
CUDA_FUNCTIONS(F)
#undef F
#else

enum { MOST = 64 };
typedef struct {
  uint8_t *to, *from;
  size_t size;
} Command;
typedef struct {
  Command commands[MOST];
  int count;
} Graph;

static Graph *recording;
static void *behind[MOST]; /* the nodes that the next one waits for: numbers from 1 */
static size_t behind_count;
static char object;
static const char code[] = "code of the GPU";
static int lost;

static const char *given(const char *name) { return getenv(name) ? getenv(name) : ""; }
static int has(const char *fault) { return strcmp(given("TEST_CUDA_FAULT"), fault) == 0; }

static void called(const char *format, ...) {
  FILE *file = getenv("TEST_CUDA_LOG") ? fopen(getenv("TEST_CUDA_LOG"), "a") : NULL;
  va_list arguments;
  if (!file) return;
  va_start(arguments, format);
  vfprintf(file, format, arguments);
  va_end(arguments);
  fclose(file);
}

/* The streams of a program are small numbers or objects of the driver's. */
static long number(void *stream) { return stream == &object ? -1 : (long)(intptr_t)stream; }

static void add_node(Command made) {
  recording->commands[recording->count++] = made;
  if (*given("TEST_CUDA_NODES")) {
    called("node %d behind", recording->count);
    for (size_t i = 0; i < behind_count; i++) called(" %ld", number(behind[i]));
    called("\n");
  }
  behind[0] = (void *)(intptr_t)recording->count;
  behind_count = 1;
}

static int command(uint64_t to, uint64_t from, size_t size) {
  const Command made = {(uint8_t *)(uintptr_t)to, (uint8_t *)(uintptr_t)from, size};
  if (recording && recording->count < MOST) add_node(made);
  else memcpy(made.to, made.from, size);
  return 0;
}

DEFINE(GetErrorString, (int status, const char **text)) {
  *text = status == 2 ? "out of memory" : status == 100 ? "no CUDA-capable device is detected" : "unspecified failure";
  return 0;
}
DEFINE(Init, (unsigned flags)) { return has("no device") ? 100 : 0; }
DEFINE(DriverGetVersion, (int *version)) { return *version = 12040, 0; }
DEFINE(DeviceGet, (int *device, int wanted)) { return *device = 0; }
DEFINE(DeviceGetName, (char *name, int size, int device)) { return strcpy(name, "Stand-in"), 0; }
DEFINE(DeviceGetAttribute, (int *value, int what, int device)) { return *value = 7, 0; }
DEFINE(DevicePrimaryCtxRetain, (void **context, int device)) { return *context = &object, 0; }
DEFINE(CtxGetStreamPriorityRange, (int *least, int *greatest)) { return *least = 0, *greatest = -5, 0; }
DEFINE(StreamCreateWithPriority, (void **stream, unsigned flags, int priority)) {
  called("priority %d\n", priority);
  return *stream = &object, 0;
}
DEFINE(ModuleLoadDataEx, (void **module, const void *text, unsigned count, const int *options, void **values)) {
  const int is_code = memcmp(text, code, sizeof code) == 0;
  called(is_code ? "load\n" : "compile\n");
  if (!is_code && has("refused") && count) strcpy(values[0], "line 7: no such instruction");
  return has(is_code ? "other code" : "refused") ? 218 : (*module = &object, 0);
}
DEFINE(LinkCreate_v2, (unsigned count, const int *options, void **values, void **linker)) { return *linker = &object, 0; }
DEFINE(LinkComplete, (void *linker, void **made, size_t *size)) {
  called("link\n");
  return *made = (void *)(uintptr_t)code, *size = sizeof code, 0;
}
DEFINE(ModuleGetFunction, (void **function, void *module, const char *name)) { return *function = &object, 0; }
DEFINE(FuncGetAttribute, (int *value, int attribute, void *function)) { return *value = 256, 0; }
DEFINE(MemAlloc_v2, (uint64_t *address, size_t size)) {
  *address = has("no memory") ? 0 : (uint64_t)(uintptr_t)calloc(1, size);
  return *address ? 0 : 2;
}
DEFINE(MemFree_v2, (uint64_t address)) { return free((void *)(uintptr_t)address), 0; }
DEFINE(MemHostAlloc, (void **address, size_t size, unsigned flags)) { return *address = calloc(1, size), 0; }
DEFINE(MemFreeHost, (void *address)) { return free(address), 0; }
DEFINE(MemcpyHtoD_v2, (uint64_t to, const void *from, size_t size)) { return command(to, (uintptr_t)from, size); }
DEFINE(MemcpyDtoH_v2, (void *to, uint64_t from, size_t size)) { return command((uintptr_t)to, from, size); }
DEFINE(MemcpyHtoDAsync_v2, (uint64_t to, const void *from, size_t size, void *stream)) {
  return command(to, (uintptr_t)from, size);
}
DEFINE(MemcpyDtoHAsync_v2, (void *to, uint64_t from, size_t size, void *stream)) {
  return command((uintptr_t)to, from, size);
}
DEFINE(MemcpyDtoDAsync_v2, (uint64_t to, uint64_t from, size_t size, void *stream)) {
  called("copy %ld\n", number(stream));
  return command(to, from, size);
}
DEFINE(EventCreate, (void **event, unsigned flags)) { return *event = &object, 0; }
DEFINE(EventRecord, (void *event, void *stream)) { return called("record %ld\n", number(stream)), 0; }
DEFINE(StreamWaitEvent, (void *stream, void *event, unsigned flags)) { return called("wait %ld\n", number(stream)), 0; }
DEFINE(StreamBeginCapture_v2, (void *stream, int mode)) {
  behind_count = 0;
  return recording = calloc(1, sizeof *recording), 0;
}
DEFINE(StreamGetCaptureInfo_v2, (void *stream, int *status, uint64_t *id, void **graph, void *const **last,
                                 size_t *count)) {
  return *last = behind, *count = behind_count, 0;
}
DEFINE(StreamUpdateCaptureDependencies, (void *stream, void **last, size_t count, unsigned flags)) {
  if (flags != 1) return 1;
  memcpy(behind, last, count * sizeof *last);
  return behind_count = count, 0;
}
DEFINE(StreamEndCapture, (void *stream, void **graph)) { return *graph = recording, recording = NULL, 0; }
DEFINE(GraphInstantiateWithFlags, (void **launched, void *graph, uint64_t flags)) { return *launched = graph, 0; }
DEFINE(GraphExecDestroy, (void *launched)) { return free(launched), 0; }
DEFINE(LaunchKernel, (void *function, unsigned x, unsigned y, unsigned z, unsigned threads_x, unsigned threads_y,
                      unsigned threads_z, unsigned shared, void *stream, void **parameters, void **more)) {
  size_t from = 0, to = 0, size = 0;
  const uint64_t mutable = *(uint64_t *)parameters[1];
  sscanf(given("TEST_CUDA_KERNEL"), "%zu %zu %zu", &from, &to, &size);
  if (!recording) called("kernel %ld\n", number(stream));
  if (*given("TEST_CUDA_THREADS")) called("threads %u\n", threads_x);
  return command(mutable + to, mutable + from, size);
}
int cuLaunchKernelEx(const CudaLaunch *launch, void *function, void **parameters, void **more) {
  if (launch->attribute_count != 1 || launch->attributes->id != 6 || *(int *)launch->attributes->values != 1) return 1;
  if (*given("TEST_CUDA_NODES")) called("early ");
  return cuLaunchKernel(function, launch->groups[0], 1, 1, launch->threads[0], 1, 1, launch->shared, launch->stream,
                        parameters, more);
}
DEFINE(GraphLaunch, (void *launched, void *stream)) {
  const Graph *graph = launched;
  called("launch %ld\n", number(stream));
  if (has("lost for good") || (has("lost") && lost++ == 0)) return 719;
  for (int i = 0; i < graph->count; i++) memcpy(graph->commands[i].to, graph->commands[i].from, graph->commands[i].size);
  return 0;
}
#endif
