/* A Vulkan library with one device that computes nothing, and fails as TEST_VULKAN_FAULT says:

   "no driver"     there is a loader, but no driver
   "no device"     ... and no device
   "no memory"     memory of the device cannot be allocated
   "refused"       pipelines are not made
   "lost"          the device is lost during the first run, and works again after
   "lost for good" the same, for ever
   "no int64"      it has no 64-bit integers
   "small groups"  it runs 16 threads in a group at most
   "small buffers" it has buffers of 64 bytes at most
   "no priorities" it does not allow priorities

   TEST_VULKAN_LOG is a file for a line of each call that tests look at, TEST_VULKAN_KEEPS says what its floats keep: "nan",
   "denorms", or both; "sixteen": it has numbers of 16 bits, of which it keeps "small" ones and that it has "rounded";
   "matrices": it has cooperative matrices, of subgroups of 32 threads or "64".

   It is compiled twice: once for the functions that do something, and with TEST_DEFAULTS for all others. */
#include <stdarg.h>

enum { DEVICE_LOOPS = 1, DEVICE_FLOAT64 = 0 };
#include "device_network.c"
#include "vulkan_api.c"

#ifdef TEST_DEFAULTS
#define F(result, name, parameters) \
  __attribute__((weak)) result vk##name parameters { return (result)0; }
VULKAN_FUNCTIONS
#undef F
#else

static int object;
static int lost;

static int has(const char *fault) {
  const char *wanted = getenv("TEST_VULKAN_FAULT");
  return wanted != NULL && strcmp(wanted, fault) == 0;
}

static int keeps(const char *what) {
  const char *wanted = getenv("TEST_VULKAN_KEEPS");
  return wanted != NULL && strstr(wanted, what) != NULL;
}

static void called(const char *format, ...) {
  const char *path = getenv("TEST_VULKAN_LOG");
  FILE *file = path ? fopen(path, "a") : NULL;
  va_list arguments;
  if (!file) return;
  va_start(arguments, format);
  vfprintf(file, format, arguments);
  va_end(arguments);
  fclose(file);
}

int vkCreateInstance(const VulkanInstance *made, const void *allocator, void **instance) {
  *instance = &object;
  return has("no driver") ? -9 : 0;
}

int vkEnumeratePhysicalDevices(void *instance, uint32_t *count, void **devices) {
  *count = has("no device") ? 0 : 1;
  if (devices) devices[0] = &object;
  return 0;
}

void vkGetPhysicalDeviceProperties(void *device, VulkanProperties *p) {
  memset(p, 0, sizeof *p);
  p->version = 1 << 22 | 2 << 12;
  strcpy(p->name, "Stand-in");
  p->limits.words[VULKAN_STORAGE_LIMIT] = has("small buffers") ? 64 : 1 << 30;
  p->limits.words[VULKAN_SHARED_LIMIT] = 32 << 10;
  p->limits.words[VULKAN_GROUP_LIMIT] = has("small groups") ? 16 : 1024;
}

void vkGetPhysicalDeviceProperties2(void *device, VulkanMoreProperties *p) {
  VulkanFloats *floats = (VulkanFloats *)p->next;
  vkGetPhysicalDeviceProperties(device, &p->properties);
  if (floats->type == 1000094000) {
    ((VulkanSubgroups *)p->next)->size = keeps("64") ? 64 : 32;
    return;
  }
  floats->keeps32 = keeps("nan");
  floats->denorms32 = keeps("denorms");
  floats->denorm_independence = floats->rounding_independence = 1;
  floats->denorms16 = keeps("small");
  floats->rounds16 = keeps("rounded");
}

void vkGetPhysicalDeviceFeatures2(void *device, VulkanMoreFeatures *features) {
  VulkanStorage16 *storage = (VulkanStorage16 *)features->next;
  if (storage->type == 1000211000) {
    VulkanMemoryModel *memory = (VulkanMemoryModel *)features->next;
    memory->model = ((VulkanMatrices *)memory->next)->matrices = 1;
    return;
  }
  VulkanFloat16 *floats = (VulkanFloat16 *)storage->next;
  storage->buffers = floats->float16 = keeps("sixteen");
}

void vkGetPhysicalDeviceFeatures(void *device, uint32_t *features) {
  for (int i = 0; i < VULKAN_FEATURES; i++) features[i] = !has("no int64");
}

void vkGetPhysicalDeviceMemoryProperties(void *device, VulkanMemory *memory) {
  memset(memory, 0, sizeof *memory);
  memory->type_count = memory->heap_count = 1;
  memory->types[0].flags = 15;
}

void vkGetPhysicalDeviceQueueFamilyProperties(void *device, uint32_t *count, VulkanFamily *families) {
  *count = 1;
  families[0] = (VulkanFamily){.flags = 2, .count = 1};
}

int vkEnumerateDeviceExtensionProperties(void *physical, const char *layer, uint32_t *count, VulkanExtension *all) {
  *count = keeps("matrices") ? 2 : 1;
  if (all) strcpy(all->name, "VK_EXT_global_priority");
  if (all && *count == 2) strcpy(all[1].name, "VK_NV_cooperative_matrix");
  return 0;
}

static int matrix_kinds(void *physical, uint32_t *count, VulkanMatrixKind *all) {
  *count = 2;
  all[0] = (VulkanMatrixKind){.rows = 16, .columns = 8, .depth = 16, .scope = 3, .sums = 1};
  all[1] = (VulkanMatrixKind){.rows = 16, .columns = 16, .depth = 16, .scope = 3, .sums = 1};
  return 0;
}

void *vkGetInstanceProcAddr(void *instance, const char *name) {
  return strcmp(name, "vkGetPhysicalDeviceCooperativeMatrixPropertiesNV") == 0 ? (void *)matrix_kinds : NULL;
}

int vkCreateDevice(void *physical, const VulkanDevice *made, const void *allocator, void **device) {
  const VulkanPriority *priority = made->queues->next;
  if (made->next) called("features of 16 bits\n");
  for (uint32_t i = 0; i < made->extension_count; i++) called("uses %s\n", made->extensions[i]);
  if (priority) called("priority %u\n", priority->priority);
  *device = &object;
  return priority && has("no priorities") ? -1000174001 : 0;
}

void vkGetBufferMemoryRequirements(void *device, VulkanObject buffer, VulkanRequirements *needed) {
  *needed = (VulkanRequirements){1 << 20, 16, 1};
}

int vkAllocateMemory(void *device, const VulkanAllocation *made, const void *allocator, VulkanObject *memory) {
  return has("no memory") ? -2 : 0;
}

int vkMapMemory(void *device, VulkanObject memory, uint64_t from, uint64_t size, uint32_t flags, void **at) {
  static uint8_t mapped[1 << 20];
  *at = mapped;
  return 0;
}

int vkCreateShaderModule(void *device, const VulkanModule *made, const void *allocator, VulkanObject *module) {
  uint32_t length;
  for (const uint32_t *at = made->words + 5; at < made->words + made->size / 4; at += length) {
    length = at[0] >> 16;
    if ((at[0] & 0xffff) == 17 && at[1] > 4000) called("capability %u\n", at[1]);
    if ((at[0] & 0xffff) == 10) called("extension %s\n", (const char *)(at + 1));
    if ((at[0] & 0xffff) == 16 && at[2] > 4000) called("mode %u %u\n", at[2], at[3]);
  }
  return 0;
}

int vkCreatePipelineCache(void *device, const VulkanCache *made, const void *allocator, VulkanObject *cache) {
  called("cache %zu\n", made->size);
  *cache = 1;
  return 0;
}

int vkGetPipelineCacheData(void *device, VulkanObject cache, size_t *size, void *data) {
  *size = 9;
  if (data) memcpy(data, "pipelines", 9);
  return 0;
}

int vkCreateComputePipelines(void *device, VulkanObject cache, uint32_t count, const VulkanPipeline *made,
                             const void *allocator, VulkanObject *pipelines) {
  const VulkanConstants *constants = made->stage.constants;
  const uint32_t *values = constants ? constants->values : NULL;
  if (values) called("constants %u %u\n", values[0], values[1]);
  pipelines[0] = 1;
  return has("refused") ? -3 : 0;
}

int vkAllocateCommandBuffers(void *device, const VulkanCommands *made, void **commands) {
  commands[0] = &object;
  return 0;
}

int vkWaitForFences(void *device, uint32_t count, const VulkanObject *fences, uint32_t all, uint64_t most) {
  return has("lost for good") || (has("lost") && lost++ == 0) ? -4 : 0;
}
#endif
