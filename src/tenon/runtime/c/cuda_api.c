/* The functions of CUDA's driver that are called, whose objects are pointers, and addresses of the device integers.  It
   stands behind device_network.c. */
#define CUDA_FUNCTIONS(F) \
  F(Init, (unsigned flags)) \
  F(GetErrorString, (int status, const char **text)) \
  F(DriverGetVersion, (int *version)) \
  F(DeviceGet, (int *device, int number)) \
  F(DeviceGetName, (char *name, int size, int device)) \
  F(DeviceGetAttribute, (int *value, int what, int device)) \
  F(DeviceTotalMem_v2, (size_t *size, int device)) \
  F(DevicePrimaryCtxRetain, (void **context, int device)) \
  F(DevicePrimaryCtxRelease_v2, (int device)) \
  F(CtxSetCurrent, (void *context)) \
  F(ModuleLoadDataEx, (void **module, const void *text, unsigned count, const int *options, void **values)) \
  F(LinkCreate_v2, (unsigned count, const int *options, void **values, void **linker)) \
  F(LinkAddData_v2, (void *linker, int kind, void *data, size_t size, const char *name, unsigned count, \
                     const int *options, void **values)) \
  F(LinkComplete, (void *linker, void **code, size_t *size)) \
  F(LinkDestroy, (void *linker)) \
  F(ModuleUnload, (void *module)) \
  F(ModuleGetFunction, (void **function, void *module, const char *name)) \
  F(FuncGetAttribute, (int *value, int attribute, void *function)) \
  F(FuncSetAttribute, (void *function, int attribute, int value)) \
  F(MemAlloc_v2, (uint64_t *address, size_t size)) \
  F(MemFree_v2, (uint64_t address)) \
  F(MemHostAlloc, (void **address, size_t size, unsigned flags)) \
  F(MemFreeHost, (void *address)) \
  F(MemcpyHtoD_v2, (uint64_t to, const void *from, size_t size)) \
  F(MemcpyHtoDAsync_v2, (uint64_t to, const void *from, size_t size, void *stream)) \
  F(MemcpyDtoHAsync_v2, (void *to, uint64_t from, size_t size, void *stream)) \
  F(CtxGetStreamPriorityRange, (int *least, int *greatest)) \
  F(StreamCreateWithPriority, (void **stream, unsigned flags, int priority)) \
  F(StreamDestroy_v2, (void *stream)) \
  F(StreamSynchronize, (void *stream)) \
  F(EventCreate, (void **event, unsigned flags)) \
  F(EventDestroy_v2, (void *event)) \
  F(EventSynchronize, (void *event)) \
  F(EventRecord, (void *event, void *stream)) \
  F(StreamWaitEvent, (void *stream, void *event, unsigned flags)) \
  F(MemcpyDtoDAsync_v2, (uint64_t to, uint64_t from, size_t size, void *stream)) \
  F(EventRecordWithFlags, (void *event, void *stream, unsigned flags)) \
  F(EventElapsedTime, (float *milliseconds, void *start, void *end)) \
  F(StreamBeginCapture_v2, (void *stream, int mode)) \
  F(StreamGetCaptureInfo_v2, (void *stream, int *status, uint64_t *id, void **graph, void *const **last, size_t *count)) \
  F(StreamUpdateCaptureDependencies, (void *stream, void **last, size_t count, unsigned flags)) \
  F(StreamEndCapture, (void *stream, void **graph)) \
  F(GraphInstantiateWithFlags, (void **launched, void *graph, uint64_t flags)) \
  F(GraphDestroy, (void *graph)) \
  F(GraphExecDestroy, (void *launched)) \
  F(GraphLaunch, (void *launched, void *stream)) \
  F(LaunchKernel, (void *function, unsigned x, unsigned y, unsigned z, unsigned threads_x, unsigned threads_y, \
                   unsigned threads_z, unsigned shared, void *stream, void **parameters, void **more))
#define CUDA_MEMBER(name, parameters) int(*name) parameters;
#define CUDA_FIND(name, parameters) device_function(library, "cu" #name, &cu.name) &&
static struct {
  CUDA_FUNCTIONS(CUDA_MEMBER)
} cu;

/* A launch that may begin before the launches have ended that it depends on, of drivers for GPUs that can do it. */
typedef struct {
  int id;
  uint64_t values[8];
} CudaLaunchAttribute;
typedef struct {
  unsigned groups[3], threads[3], shared;
  void *stream;
  CudaLaunchAttribute *attributes;
  unsigned attribute_count;
} CudaLaunch;
enum { CUDA_EARLY = 6 };
static int (*cuda_launch_with)(const CudaLaunch *launch, void *function, void **parameters, void **more);

static int cuda_load(void) {
#ifdef _WIN32
  const char *name = "nvcuda.dll";
#else
  const char *name = "libcuda.so.1";
#endif
  void *library = device_library(name);
  if (!library) return device_failed(DEVICE_NO_DRIVER, "there is no CUDA driver: %s is not installed", name);
  if (!device_function(library, "cuLaunchKernelEx", &cuda_launch_with)) cuda_launch_with = NULL;
  if (CUDA_FUNCTIONS(CUDA_FIND) 1) return 0;
  return device_failed(DEVICE_NO_DRIVER, "the CUDA driver is too old: CUDA 11.4 or newer is needed");
}
