/* The functions of libOpenCL (OpenCL 1.2) that are called, whose objects are pointers. */
typedef struct {
  unsigned order, type;
} OpenclFormat;

typedef struct {
  unsigned type;
  size_t width, others[5];
  unsigned levels, samples;
  void *buffer;
} OpenclImage;

#define OPENCL_FUNCTIONS(F) \
  F(int, GetPlatformIDs, (unsigned count, void **platforms, unsigned *found)) \
  F(int, GetDeviceIDs, (void *platform, uint64_t kind, unsigned count, void **devices, unsigned *found)) \
  F(int, GetDeviceInfo, (void *device, unsigned what, size_t size, void *value, size_t *length)) \
  F(void *, CreateContext, (const intptr_t *properties, unsigned count, void *const *devices, void *notify, \
    void *data, int *status)) \
  F(void *, CreateCommandQueue, (void *context, void *device, uint64_t properties, int *status)) \
  F(void *, CreateProgramWithSource, (void *context, unsigned count, const char **texts, \
    const size_t *lengths, int *status)) \
  F(void *, CreateProgramWithBinary, (void *context, unsigned count, void *const *devices, const size_t *sizes, \
    const uint8_t *const *binaries, int *each, int *status)) \
  F(int, BuildProgram, (void *program, unsigned count, void *const *devices, const char *options, \
    void *notify, void *data)) \
  F(int, GetProgramBuildInfo, (void *program, void *device, unsigned what, size_t size, void *value, size_t *length)) \
  F(int, GetProgramInfo, (void *program, unsigned what, size_t size, void *value, size_t *length)) \
  F(void *, CreateKernel, (void *program, const char *name, int *status)) \
  F(int, GetKernelWorkGroupInfo, (void *kernel, void *device, unsigned what, size_t size, void *value, \
    size_t *length)) \
  F(void *, CreateBuffer, (void *context, uint64_t flags, size_t size, void *from, int *status)) \
  F(void *, CreateImage, (void *context, uint64_t flags, const OpenclFormat *format, const OpenclImage *about, void *from, \
    int *status)) \
  F(int, SetKernelArg, (void *kernel, unsigned number, size_t size, const void *value)) \
  F(int, EnqueueNDRangeKernel, (void *queue, void *kernel, unsigned dimensions, const size_t *first, \
    const size_t *threads, const size_t *group, unsigned count, void *const *waits, void **event)) \
  F(int, EnqueueWriteBuffer, (void *queue, void *buffer, unsigned blocking, size_t offset, size_t size, \
    const void *from, unsigned count, void *const *waits, void **event)) \
  F(int, EnqueueReadBuffer, (void *queue, void *buffer, unsigned blocking, size_t offset, size_t size, \
    void *to, unsigned count, void *const *waits, void **event)) \
  F(int, Flush, (void *queue)) \
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

static void *opencl_library;

static int opencl_load(void) {
#ifdef _WIN32
  const char *name = "OpenCL.dll";
#else
  const char *name = "libOpenCL.so.1";
#endif
  void *const library = opencl_library = device_library(name);
  if (library && OPENCL_FUNCTIONS(OPENCL_FIND) 1) return 0;
  return device_failed(DEVICE_NO_DRIVER, "there is no OpenCL: %s is not installed", name);
}
