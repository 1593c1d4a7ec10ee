/* The functions of Vulkan 1.0 that are called, and the structures that these take.  It stands behind device_network.c.

   Objects that take commands are pointers, all others 64-bit numbers. */
typedef uint64_t VulkanObject;

#define VULKAN_HEAD \
  uint32_t type; \
  const void *next;

typedef struct {
  VULKAN_HEAD
  const char *application;
  uint32_t application_version;
  const char *engine;
  uint32_t engine_version, version;
} VulkanApplication;

typedef struct {
  VULKAN_HEAD
  uint32_t flags;
  const VulkanApplication *application;
  uint32_t layer_count;
  const char *const *layers;
  uint32_t extension_count;
  const char *const *extensions;
} VulkanInstance;

enum { VULKAN_LIMITS = 126, VULKAN_FEATURES = 55 };
enum { VULKAN_FLOAT64_FEATURE = 39, VULKAN_INT64_FEATURE = 40 }; /* places in the list of features */
/* ... of limits */
enum { VULKAN_STORAGE_LIMIT = 7, VULKAN_SHARED_LIMIT = 54, VULKAN_GROUP_LIMIT = 58, VULKAN_CLOCK_LIMIT = 106 };

typedef struct {
  uint32_t version, driver_version, vendor, device, kind;
  char name[256];
  uint8_t cache[16];
  union {
    uint32_t words[VULKAN_LIMITS];
    uint64_t aligned[VULKAN_LIMITS / 2];
  } limits;
  uint32_t sparse[5];
} VulkanProperties;

/* Vulkan 1.1. */
typedef struct {
  VULKAN_HEAD
  VulkanProperties properties;
} VulkanMoreProperties;

/* Vulkan 1.2: whether shaders may ask that floats of 16, 32 and 64 bits keep NaNs, infinities and signs of zeros, and
   numbers below the normal ones, the latter of one width without the others, and that those of 16 bits are rounded to
   the nearest. */
typedef struct {
  VULKAN_HEAD
  uint32_t denorm_independence, rounding_independence, keeps16, keeps32, keeps64, denorms16, denorms32, denorms64,
      flushes[3], rounds16, others[5];
} VulkanFloats;

/* Vulkan 1.1: the features of Vulkan 1.0, and whether numbers of 16 bits can be loaded and stored. */
typedef struct {
  VULKAN_HEAD
  uint32_t features[VULKAN_FEATURES];
} VulkanMoreFeatures;

typedef struct {
  VULKAN_HEAD
  uint32_t buffers, others[3];
} VulkanStorage16;

/* Vulkan 1.2: whether shaders compute with numbers of 16 and 8 bits. */
typedef struct {
  VULKAN_HEAD
  uint32_t float16, int8;
} VulkanFloat16;

/* Vulkan 1.2: the memory model of SPIR-V; VK_NV_cooperative_matrix: matrices, and the kinds that there are. */
typedef struct {
  VULKAN_HEAD
  uint32_t model, others[2];
} VulkanMemoryModel;

typedef struct {
  VULKAN_HEAD
  uint32_t matrices, robust;
} VulkanMatrices;

typedef struct {
  VULKAN_HEAD
  uint32_t rows, columns, depth, left, right, sums, results, scope;
} VulkanMatrixKind;

/* Vulkan 1.1: subgroups. */
typedef struct {
  VULKAN_HEAD
  uint32_t size, stages, operations, quads; /* threads, and where they do what */
} VulkanSubgroups;

typedef struct {
  uint32_t flags, count, timestamp_bits, granularity[3];
} VulkanFamily;

typedef struct {
  uint32_t type_count;
  struct {
    uint32_t flags, heap;
  } types[32];
  uint32_t heap_count;
  struct {
    uint64_t size;
    uint32_t flags;
  } heaps[16];
} VulkanMemory;

typedef struct {
  VULKAN_HEAD
  uint32_t flags, family, count;
  const float *priorities;
} VulkanQueue;

/* VK_KHR_global_priority. */
typedef struct {
  VULKAN_HEAD
  uint32_t priority;
} VulkanPriority;

typedef struct {
  char name[256];
  uint32_t version;
} VulkanExtension;

typedef struct {
  VULKAN_HEAD
  uint32_t flags, queue_count;
  const VulkanQueue *queues;
  uint32_t layer_count;
  const char *const *layers;
  uint32_t extension_count;
  const char *const *extensions;
  const uint32_t *features;
} VulkanDevice;

typedef struct {
  VULKAN_HEAD
  uint32_t flags;
  uint64_t size;
  uint32_t usage, sharing, family_count;
  const uint32_t *families;
} VulkanBuffer;

typedef struct {
  uint64_t size, alignment;
  uint32_t types;
} VulkanRequirements;

typedef struct {
  VULKAN_HEAD
  uint64_t size;
  uint32_t memory_type;
} VulkanAllocation;

typedef struct {
  uint32_t binding, type, count, stages;
  const VulkanObject *samplers;
} VulkanBinding;

typedef struct {
  VULKAN_HEAD
  uint32_t flags, count;
  const VulkanBinding *bindings;
} VulkanSetLayout;

typedef struct {
  uint32_t stages, offset, size;
} VulkanRange;

typedef struct {
  VULKAN_HEAD
  uint32_t flags, set_count;
  const VulkanObject *sets;
  uint32_t range_count;
  const VulkanRange *ranges;
} VulkanPipelineLayout;

typedef struct {
  VULKAN_HEAD
  uint32_t flags;
  size_t size;
  const uint32_t *words;
} VulkanModule;

typedef struct {
  VULKAN_HEAD
  uint32_t flags;
  size_t size;
  const void *data;
} VulkanCache;

typedef struct {
  uint32_t number, offset;
  size_t size;
} VulkanConstant;

typedef struct {
  uint32_t count;
  const VulkanConstant *constants;
  size_t size;
  const void *values;
} VulkanConstants;

typedef struct {
  VULKAN_HEAD
  uint32_t flags, stage;
  VulkanObject module;
  const char *entry;
  const VulkanConstants *constants;
} VulkanStage;

typedef struct {
  VULKAN_HEAD
  uint32_t flags;
  VulkanStage stage;
  VulkanObject layout, base;
  int32_t base_number;
} VulkanPipeline;

typedef struct {
  uint32_t type, count;
} VulkanPoolSize;

typedef struct {
  VULKAN_HEAD
  uint32_t flags, most, size_count;
  const VulkanPoolSize *sizes;
} VulkanDescriptorPool;

typedef struct {
  VULKAN_HEAD
  VulkanObject pool;
  uint32_t count;
  const VulkanObject *layouts;
} VulkanSets;

typedef struct {
  VulkanObject buffer;
  uint64_t offset, size;
} VulkanBufferRange;

typedef struct {
  VULKAN_HEAD
  VulkanObject set;
  uint32_t binding, first, count, kind;
  const void *textures;
  const VulkanBufferRange *buffers;
  const VulkanObject *views;
} VulkanWrite;

typedef struct {
  VULKAN_HEAD
  uint32_t flags, family;
} VulkanCommandPool;

typedef struct {
  VULKAN_HEAD
  VulkanObject pool;
  uint32_t level, count;
} VulkanCommands;

typedef struct {
  VULKAN_HEAD
  uint32_t flags;
  const void *inherited;
} VulkanBeginning;

typedef struct {
  VULKAN_HEAD
  uint32_t written, read;
} VulkanBarrier;

typedef struct {
  uint64_t from, to, size;
} VulkanCopy;

typedef struct {
  VULKAN_HEAD
  uint32_t wait_count;
  const VulkanObject *waits;
  const uint32_t *stages;
  uint32_t count;
  void *const *commands;
  uint32_t signal_count;
  const VulkanObject *signals;
} VulkanSubmission;

typedef struct {
  VULKAN_HEAD
  uint32_t flags;
} VulkanFence;

typedef struct {
  VULKAN_HEAD
  uint32_t flags, kind, count, statistics;
} VulkanQueryPool;

#define VULKAN_MAKE(name, structure) \
  F(int, Create##name, (void *device, const structure *made, const void *allocator, VulkanObject *object))
#define VULKAN_FREE(name) F(void, Destroy##name, (void *device, VulkanObject object, const void *allocator))
#define VULKAN_FUNCTIONS \
  F(int, CreateInstance, (const VulkanInstance *made, const void *allocator, void **instance)) \
  F(void, DestroyInstance, (void *instance, const void *allocator)) \
  F(int, EnumeratePhysicalDevices, (void *instance, uint32_t *count, void **devices)) \
  F(void, GetPhysicalDeviceProperties, (void *device, VulkanProperties *properties)) \
  F(void, GetPhysicalDeviceFeatures, (void *device, uint32_t *features)) \
  F(void, GetPhysicalDeviceMemoryProperties, (void *device, VulkanMemory *memory)) \
  F(void, GetPhysicalDeviceQueueFamilyProperties, (void *device, uint32_t *count, VulkanFamily *families)) \
  F(int, EnumerateDeviceExtensionProperties, (void *physical, const char *layer, uint32_t *count, \
                                              VulkanExtension *extensions)) \
  F(int, CreateDevice, (void *physical, const VulkanDevice *made, const void *allocator, void **device)) \
  F(void, DestroyDevice, (void *device, const void *allocator)) \
  F(void, GetDeviceQueue, (void *device, uint32_t family, uint32_t number, void **queue)) \
  F(int, DeviceWaitIdle, (void *device)) \
  VULKAN_MAKE(Buffer, VulkanBuffer) VULKAN_FREE(Buffer) \
  F(void, GetBufferMemoryRequirements, (void *device, VulkanObject buffer, VulkanRequirements *needed)) \
  F(int, AllocateMemory, (void *device, const VulkanAllocation *made, const void *allocator, VulkanObject *memory)) \
  F(void, FreeMemory, (void *device, VulkanObject memory, const void *allocator)) \
  F(int, BindBufferMemory, (void *device, VulkanObject buffer, VulkanObject memory, uint64_t offset)) \
  F(int, MapMemory, (void *device, VulkanObject memory, uint64_t from, uint64_t size, uint32_t flags, void **at)) \
  VULKAN_MAKE(DescriptorSetLayout, VulkanSetLayout) VULKAN_FREE(DescriptorSetLayout) \
  VULKAN_MAKE(PipelineLayout, VulkanPipelineLayout) VULKAN_FREE(PipelineLayout) \
  VULKAN_MAKE(ShaderModule, VulkanModule) VULKAN_FREE(ShaderModule) \
  VULKAN_MAKE(PipelineCache, VulkanCache) VULKAN_FREE(PipelineCache) VULKAN_FREE(Pipeline) \
  F(int, GetPipelineCacheData, (void *device, VulkanObject cache, size_t *size, void *data)) \
  F(int, CreateComputePipelines, (void *device, VulkanObject cache, uint32_t count, const VulkanPipeline *made, \
                                  const void *allocator, VulkanObject *pipelines)) \
  VULKAN_MAKE(DescriptorPool, VulkanDescriptorPool) VULKAN_FREE(DescriptorPool) \
  F(int, AllocateDescriptorSets, (void *device, const VulkanSets *made, VulkanObject *sets)) \
  F(void, UpdateDescriptorSets, (void *device, uint32_t count, const VulkanWrite *writes, uint32_t copy_count, \
                                 const void *copies)) \
  VULKAN_MAKE(CommandPool, VulkanCommandPool) VULKAN_FREE(CommandPool) \
  F(int, AllocateCommandBuffers, (void *device, const VulkanCommands *made, void **commands)) \
  F(void, FreeCommandBuffers, (void *device, VulkanObject pool, uint32_t count, void *const *commands)) \
  F(int, BeginCommandBuffer, (void *commands, const VulkanBeginning *how)) \
  F(int, EndCommandBuffer, (void *commands)) \
  F(void, CmdBindPipeline, (void *commands, uint32_t point, VulkanObject pipeline)) \
  F(void, CmdBindDescriptorSets, (void *commands, uint32_t point, VulkanObject layout, uint32_t first, \
                                  uint32_t count, const VulkanObject *sets, uint32_t moved_count, \
                                  const uint32_t *moved)) \
  F(void, CmdPushConstants, (void *commands, VulkanObject layout, uint32_t stages, uint32_t offset, uint32_t size, \
                             const void *values)) \
  F(void, CmdDispatch, (void *commands, uint32_t x, uint32_t y, uint32_t z)) \
  F(void, CmdCopyBuffer, (void *commands, VulkanObject from, VulkanObject to, uint32_t count, \
                          const VulkanCopy *copies)) \
  F(void, CmdPipelineBarrier, (void *commands, uint32_t before, uint32_t after, uint32_t flags, \
                               uint32_t memory_count, const VulkanBarrier *memory, uint32_t buffer_count, \
                               const void *buffers, uint32_t texture_count, const void *textures)) \
  VULKAN_MAKE(QueryPool, VulkanQueryPool) VULKAN_FREE(QueryPool) \
  F(void, CmdResetQueryPool, (void *commands, VulkanObject pool, uint32_t first, uint32_t count)) \
  F(void, CmdWriteTimestamp, (void *commands, uint32_t stage, VulkanObject pool, uint32_t number)) \
  F(int, GetQueryPoolResults, (void *device, VulkanObject pool, uint32_t first, uint32_t count, size_t size, \
                               void *values, uint64_t step, uint32_t flags)) \
  VULKAN_MAKE(Fence, VulkanFence) VULKAN_FREE(Fence) \
  F(int, ResetFences, (void *device, uint32_t count, const VulkanObject *fences)) \
  F(int, WaitForFences, (void *device, uint32_t count, const VulkanObject *fences, uint32_t all, uint64_t most)) \
  F(int, QueueSubmit, (void *queue, uint32_t count, const VulkanSubmission *submissions, VulkanObject fence))

#define F(result, name, parameters) result(*name) parameters;
static struct {
  VULKAN_FUNCTIONS
} vk;
#undef F
/* Vulkan 1.1 has them. */
static void (*vulkan_more_properties)(void *device, VulkanMoreProperties *properties);
static void (*vulkan_more_features)(void *device, VulkanMoreFeatures *features);
static void *(*vulkan_function)(void *instance, const char *name);

static int vulkan_load(void) {
#ifdef _WIN32
  const char *name = "vulkan-1.dll";
#else
  const char *name = "libvulkan.so.1";
#endif
  void *library = device_library(name);
#define F(result, name, parameters) device_function(library, "vk" #name, &vk.name) &&
  if (library && VULKAN_FUNCTIONS 1) {
    device_function(library, "vkGetPhysicalDeviceProperties2", &vulkan_more_properties);
    device_function(library, "vkGetPhysicalDeviceFeatures2", &vulkan_more_features);
    device_function(library, "vkGetInstanceProcAddr", &vulkan_function);
    return 0;
  }
#undef F
  return device_failed(DEVICE_NO_DRIVER, "there is no Vulkan: %s is not installed", name);
}
