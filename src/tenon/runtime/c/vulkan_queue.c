/* A network on a Vulkan device: its memory and its pipelines.  It stands behind vulkan_api.c. */

/* Types of structures; an object's number is that of the structure which makes it. */
enum {
  VULKAN_SUBMISSION = 4,
  VULKAN_ALLOCATION = 5,
  VULKAN_FENCE = 8,
  VULKAN_QUERY_POOL = 11,
  VULKAN_BUFFER = 12,
  VULKAN_MODULE = 16,
  VULKAN_CACHE = 17,
  VULKAN_STAGE = 18,
  VULKAN_PIPELINE = 29,
  VULKAN_PIPELINE_LAYOUT = 30,
  VULKAN_SET_LAYOUT = 32,
  VULKAN_DESCRIPTOR_POOL = 33,
  VULKAN_SETS = 34,
  VULKAN_WRITE = 35,
  VULKAN_COMMAND_POOL = 39,
  VULKAN_COMMANDS = 40,
  VULKAN_BEGINNING = 42,
  VULKAN_BARRIER = 46
};
enum { VULKAN_COMPUTE_QUEUE = 2, VULKAN_DISCRETE = 2, VULKAN_DEVICES = 16, VULKAN_FAMILIES = 16 };
enum { VULKAN_LOCAL = 1, VULKAN_VISIBLE = 2, VULKAN_COHERENT = 4, VULKAN_CACHED = 8 };
enum { VULKAN_COPIED = 3, VULKAN_STORAGE = 32, VULKAN_STORAGE_BUFFER = 7, VULKAN_COMPUTE = 1, VULKAN_SHADER = 32 };
enum { VULKAN_AT_SHADER = 2048, VULKAN_AT_COPY = 4096, VULKAN_AT_HOST = 16384 };
enum { VULKAN_SHADER_ACCESS = 32 | 64, VULKAN_COPY_ACCESS = 2048 | 4096, VULKAN_HOST_ACCESS = 8192 | 16384 };
enum { VULKAN_MOST_GROUPS = 65535, VULKAN_MOST_OPERANDS = 32 };
enum { VULKAN_SHADERS = sizeof device_shaders / sizeof device_shaders[0] };
enum { VULKAN_END_OF_ALL = 8192, VULKAN_TIMESTAMPS = 2, VULKAN_64_BITS = 1 };
enum { VULKAN_PRIORITY = 1000174000 };
enum { VULKAN_NVIDIA = 0x10de, VULKAN_NO_HOST_MEMORY = -1 };
enum { VULKAN_AGAIN = 2, VULKAN_STAMPS = 4096 }; /* command buffers can be recorded again; timestamps of one of them */

typedef struct {
  VulkanObject buffer, memory;
} VulkanRegion;

struct DeviceQueue {
  const DeviceNetwork *network;
  DeviceOptions options;
  void *instance, *physical, *device, *queue, **kernels;
  char name[288]; /* of the device in files of groups, which OpenCL has sections of its own in */
  DeviceGroup *groups; /* of each step */
  int is_tuned;        /* the sizes of groups are chosen, if they are to be */
  void *commands; /* the command buffer that is being recorded */
  void *recorded; /* that of a run which is known before */
  void *passing;  /* that of a run which is recorded while it runs */
  uint32_t family;
  VulkanNumbers16 numbers16; /* features that the device was asked for */
  VulkanMatrixFeatures matrices;
  uint32_t subgroup; /* threads that exchange values without shared memory; 0: none */
  VulkanRegion regions[DEVICE_REGIONS], staging;
  uint8_t *ports; /* the mutable region, and a number, as the host sees them: `staging` */
  VulkanObject set_layout, layout, cache, pool, set, command_pool, fence;
  VulkanObject pipelines[VULKAN_SHADERS]; /* 0 for shaders of other networks */
  VulkanObject clock;                     /* timestamps; 0 before the first timed run */
  uint64_t *nanoseconds;                  /* of a timed run */
  size_t stamp_count, slots[VULKAN_STAMPS]; /* how many there are, and what the time before each is of */
};

static int vulkan_failed(int status, const char *doing) {
  static const char *words[] = {"unknown error", "out of memory", "out of memory of the device", "initialisation failed",
                                "the device was lost"};
  if (device_is_own(status)) return status;
  const int known = status < 0 && status >= -4 ? -status : 0;
  device_failed(status, "Vulkan: %s (status %d) while %s", words[known], status, doing);
  return known == 1 || known == 2 ? DEVICE_NO_MEMORY : status;
}

/* --------------------------------------------------------------------------------------------- device */
static int vulkan_instance(DeviceQueue *d) {
  VulkanApplication application = {.type = 0, .application = "tenon", .version = 1 << 22};
  const VulkanInstance made = {.type = 1, .application = &application};
  int status = device_may_call();
  if (status == 0) status = vulkan_load();
  if (status) return status;
  if (vulkan_more_properties) application.version = VULKAN_1_2; /* drivers of Vulkan 1.0 alone refuse other versions */
  status = vk.CreateInstance(&made, NULL, &d->instance);
  if (status == -9) return device_failed(DEVICE_NO_DRIVER, "there is no Vulkan driver: install that of the device "
                                                           "(Debian's mesa-vulkan-drivers runs on the processor, too)");
  return status ? vulkan_failed(status, "creating an instance") : 0;
}

/* The first family of queues that takes shaders; -1 if there is none. */
static int vulkan_family(void *physical) {
  VulkanFamily families[VULKAN_FAMILIES];
  uint32_t count = VULKAN_FAMILIES;
  vk.GetPhysicalDeviceQueueFamilyProperties(physical, &count, families);
  for (uint32_t i = 0; i < count; i++) {
    if (families[i].flags & VULKAN_COMPUTE_QUEUE) return (int)i;
  }
  return -1;
}

/* Chooses a discrete GPU, else an integrated one, else what there is. */
static int vulkan_choose(DeviceQueue *d) {
  static const int ranks[] = {1, 3, 4, 2, 0}; /* other, integrated, discrete, virtual, processor */
  void *devices[VULKAN_DEVICES];
  uint32_t count = VULKAN_DEVICES;
  int best = -1;
  const int status = vk.EnumeratePhysicalDevices(d->instance, &count, devices);
  if (status < 0) return vulkan_failed(status, "looking for a device");
  for (uint32_t i = 0; i < count; i++) {
    VulkanProperties about;
    vk.GetPhysicalDeviceProperties(devices[i], &about);
    const int rank = about.kind <= 4 ? ranks[about.kind] : 0, family = vulkan_family(devices[i]);
    if (family < 0 || rank <= best) continue;
    best = rank;
    d->physical = devices[i];
    d->family = (uint32_t)family;
  }
  return best < 0 ? device_failed(DEVICE_NONE, "there is no Vulkan device that runs compute shaders") : 0;
}

/* Groups of the usual size, where any will do. */
static int vulkan_groups(DeviceQueue *d) {
  const DeviceNetwork *n = d->network;
  VulkanProperties about;
  vk.GetPhysicalDeviceProperties(d->physical, &about);
  snprintf(d->name, sizeof d->name, "%s (Vulkan)", about.name);
  const uint32_t *limits = &about.limits.words[VULKAN_GROUP_LIMIT]; /* of threads in all, and along the first axis */
  const uint32_t most = limits[0] < limits[1] ? limits[0] : limits[1];
  d->groups = calloc(n->step_count + 1, sizeof *d->groups);
  if (!d->groups) return device_failed(DEVICE_NO_MEMORY, "out of memory");
  for (size_t i = 0; i < n->step_count; i++) {
    const unsigned stated = n->steps[i].group;
    d->groups[i].group = stated ? stated : DEVICE_GROUP;
    d->groups[i].largest = stated ? stated : most;
  }
  return 0;
}

static int vulkan_lacks(const char *device, const char *what) {
  return device_failed(DEVICE_UNFIT, "the Vulkan device %s has no %s, which the network needs: compile it for another "
                                     "target",
                       device, what);
}

/* Whether the device has groups as large as those of the network, and the memory that they share. */
static int vulkan_check_groups(const DeviceNetwork *n, const VulkanProperties *about) {
  const uint32_t threads = about->limits.words[VULKAN_GROUP_LIMIT], shared = about->limits.words[VULKAN_SHARED_LIMIT];
  for (size_t i = 0; i < n->step_count; i++) {
    const unsigned group = n->steps[i].group, bytes = device_shaders[n->bindings[i].shader].shared;
    if (group > threads) {
      return device_failed(DEVICE_UNFIT, "the Vulkan device %s runs %u threads in a group, and the network has groups "
                                         "of %u: compile it for another target",
                           about->name, threads, group);
    }
    if (bytes > shared) {
      return device_failed(DEVICE_UNFIT, "groups of the Vulkan device %s share %u bytes, and the network needs %u: "
                                         "compile it for another target",
                           about->name, shared, bytes);
    }
  }
  return 0;
}

/* Whether the device has what the shaders use. */
static int vulkan_check(const DeviceQueue *d, uint32_t *used) {
  uint32_t has[VULKAN_FEATURES];
  VulkanProperties about;
  vk.GetPhysicalDeviceFeatures(d->physical, has);
  vk.GetPhysicalDeviceProperties(d->physical, &about);
  used[VULKAN_INT64_FEATURE] = DEVICE_INT64;
  used[VULKAN_FLOAT64_FEATURE] = DEVICE_FLOAT64;
  if (DEVICE_INT64 && !has[VULKAN_INT64_FEATURE]) return vulkan_lacks(about.name, "64-bit integers (shaderInt64)");
  if (DEVICE_FLOAT64 && !has[VULKAN_FLOAT64_FEATURE]) return vulkan_lacks(about.name, "64-bit floats (shaderFloat64)");
  for (unsigned i = 0; i < DEVICE_REGIONS; i++) {
    const uint32_t most = about.limits.words[VULKAN_STORAGE_LIMIT];
    if (d->network->sizes[i] <= most) continue;
    return device_failed(DEVICE_UNFIT, "buffers of the Vulkan device %s have at most %u bytes, and the network needs %zu: "
                                       "compile it for another target",
                         about.name, most, d->network->sizes[i]);
  }
  return vulkan_check_groups(d->network, &about);
}

/* The major, minor and last numbers of a version. */
static void vulkan_version(char *text, size_t size, uint32_t version, unsigned last) {
  snprintf(text, size, "%u.%u.%u", version >> 22, version >> (last + 2) & (last == 6 ? 255 : 1023),
           last == 6 ? version >> 6 & 255 : version & 4095);
}

static const char *vulkan_described(void *physical) {
  char driver[32], version[32] = "Vulkan ";
  VulkanProperties about;
  VulkanMemory memory;
  uint64_t most = 0;
  vk.GetPhysicalDeviceProperties(physical, &about);
  vk.GetPhysicalDeviceMemoryProperties(physical, &memory);
  for (uint32_t i = 0; i < memory.heap_count; i++) {
    if (memory.heaps[i].flags & VULKAN_LOCAL && memory.heaps[i].size > most) most = memory.heaps[i].size;
  }
  vulkan_version(driver, sizeof driver, about.driver_version, about.vendor == VULKAN_NVIDIA ? 6 : 10);
  vulkan_version(version + 7, sizeof version - 7, about.version, 10);
  return device_described(about.name, driver, version, 0, most); /* Vulkan does not tell the number of units */
}

static const char *device_facts(void) {
  DeviceQueue d = {.network = NULL};
  const char *facts = "";
  if (vulkan_instance(&d) == 0 && vulkan_choose(&d) == 0) facts = vulkan_described(d.physical);
  if (d.instance) vk.DestroyInstance(d.instance, NULL);
  return facts;
}

/* The extension for priorities among processes, under its new or its old name; NULL if there is none. */
static const char *vulkan_priority_extension(void *physical) {
  static const char *const names[] = {"VK_KHR_global_priority", "VK_EXT_global_priority"};
  const char *name = NULL;
  uint32_t count = 0;
  if (vk.EnumerateDeviceExtensionProperties(physical, NULL, &count, NULL) != 0) return NULL;
  VulkanExtension *all = calloc(count + 1, sizeof *all);
  if (all) vk.EnumerateDeviceExtensionProperties(physical, NULL, &count, all);
  for (uint32_t i = 0; all && i < 2 * count && !name; i++) {
    if (strcmp(all[i / 2].name, names[i % 2]) == 0) name = names[i % 2];
  }
  free(all);
  return name;
}

/* With the wanted priority, where the driver has it and allows it. */
static int vulkan_create_device(DeviceQueue *d, VulkanDevice *made, VulkanQueue *queue) {
  static const uint32_t priorities[] = {256, 128, 256, 512};
  const VulkanPriority priority = {.type = VULKAN_PRIORITY, .priority = priorities[d->options.priority]};
  const char *name = d->options.priority != DEVICE_USUAL ? vulkan_priority_extension(d->physical) : NULL;
  const char *extensions[] = {"VK_NV_cooperative_matrix", name};
  const uint32_t usual = d->matrices.matrices.matrices ? 1 : 0;
  made->extensions = extensions + 1 - usual;
  if (name) {
    queue->next = &priority;
    made->extension_count = usual + 1;
    if (vk.CreateDevice(d->physical, made, NULL, &d->device) == 0) return 0;
    queue->next = NULL;
    d->device = NULL;
  }
  made->extension_count = usual;
  return vk.CreateDevice(d->physical, made, NULL, &d->device);
}

static int vulkan_device(DeviceQueue *d) {
  static const float priority = 1;
  uint32_t features[VULKAN_FEATURES] = {0};
  VulkanQueue queue = {.type = 2, .family = d->family, .count = 1, .priorities = &priority};
  VulkanDevice made = {.type = 3, .queue_count = 1, .queues = &queue, .features = features};
  int status = vulkan_check(d, features);
  if (status) return status;
  d->numbers16 = vulkan_numbers16(d->physical);
  d->numbers16.storage.next = &d->numbers16.arithmetic;
  if (d->numbers16.storage.buffers) made.next = &d->numbers16.storage;
  d->subgroup = vulkan_subgroup(d->physical);
  d->matrices = vulkan_matrices(d->instance, d->physical);
  d->matrices.memory.next = &d->matrices.matrices;
  if (d->matrices.matrices.matrices) d->numbers16.arithmetic.next = &d->matrices.memory;
  status = vulkan_create_device(d, &made, &queue);
  if (status) return vulkan_failed(status, "opening the device");
  vk.GetDeviceQueue(d->device, d->family, 0, &d->queue);
  return 0;
}

/* --------------------------------------------------------------------------------------------- memory */
/* The first type of memory among `types` that has all of `flags`; -1 if there is none. */
static int vulkan_memory_type(const DeviceQueue *d, uint32_t types, uint32_t flags) {
  VulkanMemory memory;
  vk.GetPhysicalDeviceMemoryProperties(d->physical, &memory);
  for (uint32_t i = 0; i < memory.type_count; i++) {
    if (types >> i & 1 && (memory.types[i].flags & flags) == flags) return (int)i;
  }
  return -1;
}

/* A buffer in memory with `flags`, and with `liked` if there is such memory. */
static int vulkan_allocate(DeviceQueue *d, VulkanRegion *r, size_t size, uint32_t flags, uint32_t liked) {
  const VulkanBuffer made = {
      .type = VULKAN_BUFFER, .size = size ? (size + 15) / 16 * 16 : 16, .usage = VULKAN_STORAGE | VULKAN_COPIED};
  VulkanRequirements needed;
  int status = vk.CreateBuffer(d->device, &made, NULL, &r->buffer);
  if (status) return status;
  vk.GetBufferMemoryRequirements(d->device, r->buffer, &needed);
  int type = vulkan_memory_type(d, needed.types, flags | liked);
  if (type < 0) type = vulkan_memory_type(d, needed.types, flags);
  const VulkanAllocation memory = {
      .type = VULKAN_ALLOCATION, .size = needed.size, .memory_type = type < 0 ? 0 : (uint32_t)type};
  status = vk.AllocateMemory(d->device, &memory, NULL, &r->memory);
  return status ? status : vk.BindBufferMemory(d->device, r->buffer, r->memory, 0);
}

static int vulkan_map(DeviceQueue *d, VulkanRegion *r, size_t size, uint8_t **at) {
  int status = vulkan_allocate(d, r, size, VULKAN_VISIBLE | VULKAN_COHERENT, VULKAN_CACHED);
  return status ? status : vk.MapMemory(d->device, r->memory, 0, size ? size : 4, 0, (void **)at);
}

static void vulkan_free(DeviceQueue *d, VulkanRegion *r) {
  if (r->buffer) vk.DestroyBuffer(d->device, r->buffer, NULL);
  if (r->memory) vk.FreeMemory(d->device, r->memory, NULL);
}

/* ------------------------------------------------------------------------------------------- commands */
/* Begins to record a command buffer, which is made unless there is one. */
static int vulkan_begin(DeviceQueue *d, void **commands) {
  const VulkanCommands made = {.type = VULKAN_COMMANDS, .pool = d->command_pool, .count = 1};
  const VulkanBeginning how = {.type = VULKAN_BEGINNING};
  const int status = *commands ? 0 : vk.AllocateCommandBuffers(d->device, &made, commands);
  return status ? status : vk.BeginCommandBuffer(*commands, &how);
}

/* Waits until what is recorded has run. */
static int vulkan_submit(DeviceQueue *d, void *commands) {
  const VulkanSubmission submission = {.type = VULKAN_SUBMISSION, .count = 1, .commands = &commands};
  int status = vk.ResetFences(d->device, 1, &d->fence);
  if (status == 0) status = vk.QueueSubmit(d->queue, 1, &submission, d->fence);
  return status ? status : vk.WaitForFences(d->device, 1, &d->fence, 1, UINT64_MAX);
}

/* The accesses that stages make. */
static uint32_t vulkan_accesses(uint32_t stages) {
  return (stages & VULKAN_AT_SHADER ? VULKAN_SHADER_ACCESS : 0) | (stages & VULKAN_AT_COPY ? VULKAN_COPY_ACCESS : 0) |
         (stages & VULKAN_AT_HOST ? VULKAN_HOST_ACCESS : 0);
}

/* Commands that follow see what was written before. */
static void vulkan_wait(void *commands, uint32_t before, uint32_t after) {
  const VulkanBarrier barrier = {
      .type = VULKAN_BARRIER, .written = vulkan_accesses(before), .read = vulkan_accesses(after)};
  vk.CmdPipelineBarrier(commands, before, after, 0, 1, &barrier, 0, NULL, 0, NULL);
}

static int vulkan_upload(DeviceQueue *d, const uint8_t *weights) {
  const size_t size = d->network->sizes[DEVICE_CONSTANT];
  const VulkanCopy copy = {0, 0, size};
  VulkanRegion staging = {0, 0};
  void *commands = NULL;
  uint8_t *at = NULL;
  if (size == 0) return 0;
  int status = vulkan_map(d, &staging, size, &at);
  if (status == 0) memcpy(at, weights, size);
  if (status == 0) status = vulkan_begin(d, &commands);
  if (status == 0) {
    vk.CmdCopyBuffer(commands, staging.buffer, d->regions[DEVICE_CONSTANT].buffer, 1, &copy);
    vulkan_wait(commands, VULKAN_AT_COPY, VULKAN_AT_SHADER);
    status = vk.EndCommandBuffer(commands);
  }
  if (status == 0) status = vulkan_submit(d, commands);
  if (commands) vk.FreeCommandBuffers(d->device, d->command_pool, 1, &commands);
  vulkan_free(d, &staging);
  return status;
}

static int vulkan_regions(DeviceQueue *d, const uint8_t *weights) {
  const VulkanCommandPool pool = {.type = VULKAN_COMMAND_POOL, .flags = VULKAN_AGAIN, .family = d->family};
  const VulkanFence fence = {.type = VULKAN_FENCE};
  int status = vk.CreateCommandPool(d->device, &pool, NULL, &d->command_pool);
  if (status == 0) status = vk.CreateFence(d->device, &fence, NULL, &d->fence);
  for (unsigned i = 0; status == 0 && i < DEVICE_REGIONS; i++) {
    status = vulkan_allocate(d, &d->regions[i], d->network->sizes[i], 0, VULKAN_LOCAL);
  }
  if (status == 0) status = vulkan_map(d, &d->staging, d->network->sizes[DEVICE_MUTABLE] + DEVICE_NUMBER, &d->ports);
  if (status == 0) status = vulkan_upload(d, weights);
  return status ? vulkan_failed(status, "allocating memory of the device") : 0;
}

/* ------------------------------------------------------------------------------------------ pipelines */
/* All shaders have the same interface: the three regions, and the operands of the launch. */
static int vulkan_interface(DeviceQueue *d) {
  VulkanBinding bindings[DEVICE_REGIONS];
  VulkanBufferRange ranges[DEVICE_REGIONS];
  for (uint32_t i = 0; i < DEVICE_REGIONS; i++) {
    bindings[i] = (VulkanBinding){i, VULKAN_STORAGE_BUFFER, 1, VULKAN_SHADER, NULL};
    ranges[i] = (VulkanBufferRange){d->regions[i].buffer, 0, UINT64_MAX};
  }
  const VulkanSetLayout sets = {.type = VULKAN_SET_LAYOUT, .count = DEVICE_REGIONS, .bindings = bindings};
  int status = vk.CreateDescriptorSetLayout(d->device, &sets, NULL, &d->set_layout);
  const VulkanRange operands = {VULKAN_SHADER, 0, VULKAN_MOST_OPERANDS * sizeof(int)};
  const VulkanPipelineLayout layout = {.type = VULKAN_PIPELINE_LAYOUT,
                                       .set_count = 1,
                                       .sets = &d->set_layout,
                                       .range_count = 1,
                                       .ranges = &operands};
  if (status == 0) status = vk.CreatePipelineLayout(d->device, &layout, NULL, &d->layout);
  const VulkanPoolSize size = {VULKAN_STORAGE_BUFFER, DEVICE_REGIONS};
  const VulkanDescriptorPool pool = {.type = VULKAN_DESCRIPTOR_POOL, .most = 1, .size_count = 1, .sizes = &size};
  if (status == 0) status = vk.CreateDescriptorPool(d->device, &pool, NULL, &d->pool);
  const VulkanSets made = {.type = VULKAN_SETS, .pool = d->pool, .count = 1, .layouts = &d->set_layout};
  if (status == 0) status = vk.AllocateDescriptorSets(d->device, &made, &d->set);
  if (status) return vulkan_failed(status, "binding the memory of the device");
  const VulkanWrite write = {.type = VULKAN_WRITE,
                             .set = d->set,
                             .count = DEVICE_REGIONS,
                             .kind = VULKAN_STORAGE_BUFFER,
                             .buffers = ranges};
  vk.UpdateDescriptorSets(d->device, 1, &write, 0, NULL);
  return 0;
}

/* The module of a shader that suits the device best, for groups of so many threads: whole subgroups. */
static const DeviceModule *vulkan_module(const DeviceQueue *d, const DeviceShader *s, unsigned group) {
  const int has_16_bits = d->numbers16.storage.buffers != 0, needs_16_bits = s->with_16_bits.words != NULL;
  if (s->with_matrices.words && d->matrices.matrices.matrices) return &s->with_matrices;
  if (s->with_subgroups.words && d->subgroup && group % d->subgroup == 0 && has_16_bits >= needs_16_bits) {
    return &s->with_subgroups;
  }
  return needs_16_bits && has_16_bits ? &s->with_16_bits : &s->usual;
}

/* The pipeline of a shader, whose groups have so many threads. */
static int vulkan_pipeline(DeviceQueue *d, unsigned shader, unsigned group) {
  enum { WORD = sizeof(uint32_t) };
  static const VulkanConstant constants[] = {
      {0, 0, WORD}, {1, WORD, WORD}, {2, 2 * WORD, WORD}, {3, 3 * WORD, WORD}};
  const VulkanFloats floats = vulkan_floats(d->physical);
  const uint32_t facts[] = {
      (uint32_t)vulkan_keeps_denorms(&floats, 16), (uint32_t)vulkan_rounds16(&floats), d->subgroup, group};
  const VulkanConstants values = {4, constants, sizeof facts, facts};
  const DeviceModule *module = vulkan_module(d, &device_shaders[shader], group);
  uint32_t *words = malloc(module->size);
  if (!words) return VULKAN_NO_HOST_MEMORY;
  const VulkanModule code = {.type = VULKAN_MODULE,
                             .size = vulkan_copied(words, module, &floats),
                             .words = words};
  VulkanPipeline made = {.type = VULKAN_PIPELINE,
                         .stage = {.type = VULKAN_STAGE,
                                   .stage = VULKAN_SHADER,
                                   .entry = "main",
                                   .constants = &values},
                         .layout = d->layout};
  int status = vk.CreateShaderModule(d->device, &code, NULL, &made.stage.module);
  free(words);
  if (status) return status;
  status = vk.CreateComputePipelines(d->device, d->cache, 1, &made, NULL, &d->pipelines[shader]);
  vk.DestroyShaderModule(d->device, made.stage.module, NULL);
  return status;
}

/* The driver finds in a cache which pipelines it has. */
static void vulkan_identify(const DeviceQueue *d, DeviceIdentity *id) {
  VulkanProperties about;
  char version[32], driver[32], cache[2 * sizeof about.cache + 1];
  vk.GetPhysicalDeviceProperties(d->physical, &about);
  snprintf(version, sizeof version, "%u", about.version);
  snprintf(driver, sizeof driver, "%u", about.driver_version);
  for (size_t i = 0; i < sizeof about.cache; i++) snprintf(cache + 2 * i, 3, "%02x", about.cache[i]);
  device_identify(id, about.name, version, cache, driver);
}

/* Returns whether it has what was kept. */
static int vulkan_cache(DeviceQueue *d, const DeviceIdentity *id) {
  DeviceBinary b;
  VulkanCache made = {.type = VULKAN_CACHE};
  const int is_kept = device_cached(id, &d->options, &b);
  if (is_kept) {
    made.size = b.size;
    made.data = b.data;
    if (vk.CreatePipelineCache(d->device, &made, NULL, &d->cache) != 0) d->cache = 0;
    free(b.content);
  }
  return is_kept && d->cache;
}

static void vulkan_keep(DeviceQueue *d, const DeviceIdentity *id) {
  size_t size = 0;
  if (!d->options.cache || vk.GetPipelineCacheData(d->device, d->cache, &size, NULL) != 0 || size == 0) return;
  void *data = malloc(size);
  if (data && vk.GetPipelineCacheData(d->device, d->cache, &size, data) == 0) device_keep(id, &d->options, data, size);
  free(data);
}

/* The pipelines of the network's shaders, by the sizes of groups of the steps that run them. */
static int vulkan_create_pipelines(DeviceQueue *d) {
  int status = 0;
  for (size_t i = 0; status == 0 && i < d->network->step_count; i++) {
    const unsigned shader = d->network->bindings[i].shader;
    if (!d->pipelines[shader]) status = vulkan_pipeline(d, shader, (unsigned)d->groups[i].group);
  }
  return status ? vulkan_failed(status, "loading the kernels") : 0;
}

static void vulkan_destroy_pipelines(DeviceQueue *d) {
  for (unsigned i = 0; i < VULKAN_SHADERS; i++) {
    if (d->pipelines[i]) vk.DestroyPipeline(d->device, d->pipelines[i], NULL);
    d->pipelines[i] = 0;
  }
}

static int vulkan_pipelines(DeviceQueue *d) {
  const VulkanCache empty = {.type = VULKAN_CACHE};
  DeviceIdentity id;
  vulkan_identify(d, &id);
  const int is_kept = vulkan_cache(d, &id);
  int status = is_kept ? 0 : vk.CreatePipelineCache(d->device, &empty, NULL, &d->cache);
  if (status) return vulkan_failed(status, "loading the kernels");
  status = vulkan_create_pipelines(d);
  if (status == 0 && !is_kept) vulkan_keep(d, &id);
  return status;
}
