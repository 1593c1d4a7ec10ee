/* The modules of shaders as a device takes them.  They ask that NaNs, infinities and signs of zeros are kept, and numbers
   below the normal ones, and that floats of 16 bits are rounded to the nearest, which devices of Vulkan 1.2 may promise
   (others mostly do it): it is left out for those that do not.  Devices with numbers of 16 bits have modules of their own.
   It stands behind vulkan_api.c. */
enum { VULKAN_1_1 = 1 << 22 | 1 << 12, VULKAN_1_2 = 1 << 22 | 2 << 12 };
enum { VULKAN_MORE_PROPERTIES = 1000059001, VULKAN_FLOATS = 1000197000 };
enum { VULKAN_MORE_FEATURES = 1000059000, VULKAN_STORAGE16 = 1000083000, VULKAN_FLOAT16 = 1000082000 };
enum { VULKAN_ALL_INDEPENDENT = 1, VULKAN_NONE_INDEPENDENT = 2 };
enum { SPIRV_HEADER = 5, SPIRV_EXTENSION = 10, SPIRV_MODE = 16, SPIRV_CAPABILITY = 17 };
enum { SPIRV_ROUNDING_MODE = 4462, SPIRV_ROUNDING_CAPABILITY = 4467 };
enum { SPIRV_NAN_MODE = 4461, SPIRV_NAN_CAPABILITY = 4466, SPIRV_DENORM_MODE = 4459, SPIRV_DENORM_CAPABILITY = 4464 };

enum { VULKAN_MEMORY_MODEL = 1000211000, VULKAN_MATRICES = 1000249000, VULKAN_MATRIX_KIND = 1000249001 };
enum { VULKAN_SUBGROUPS = 1000094000, VULKAN_MATRIX_KINDS = 64, VULKAN_WARP = 32 };
enum { VULKAN_IS_F16 = 0, VULKAN_IS_F32 = 1, VULKAN_OF_SUBGROUP = 3 }; /* elements of matrices, and who holds them */

typedef struct {
  VulkanStorage16 storage;
  VulkanFloat16 arithmetic;
} VulkanNumbers16;

typedef struct {
  VulkanMemoryModel memory;
  VulkanMatrices matrices;
} VulkanMatrixFeatures;

static int vulkan_is(void *physical, uint32_t version) {
  VulkanProperties about;
  vk.GetPhysicalDeviceProperties(physical, &about);
  return about.version >= version;
}

/* The features that modules for numbers of 16 bits need, as they are asked for; all zero where the device lacks one. */
static VulkanNumbers16 vulkan_numbers16(void *physical) {
  VulkanNumbers16 none = {.storage.type = VULKAN_STORAGE16, .arithmetic.type = VULKAN_FLOAT16}, has = none;
  VulkanMoreFeatures features = {.type = VULKAN_MORE_FEATURES, .next = &has.storage};
  has.storage.next = &has.arithmetic;
  if (!vulkan_more_features || !vulkan_is(physical, VULKAN_1_2)) return none;
  vulkan_more_features(physical, &features);
  none.storage.buffers = none.arithmetic.float16 = has.storage.buffers && has.arithmetic.float16;
  return none;
}

static int vulkan_has_extension(void *physical, const char *name) {
  uint32_t count = 0;
  int found = 0;
  if (vk.EnumerateDeviceExtensionProperties(physical, NULL, &count, NULL) != 0) return 0;
  VulkanExtension *all = calloc(count + 1, sizeof *all);
  if (all) vk.EnumerateDeviceExtensionProperties(physical, NULL, &count, all);
  for (uint32_t i = 0; all && i < count && !found; i++) found = strcmp(all[i].name, name) == 0;
  free(all);
  return found;
}

/* Whether 16 x 16 x 16 products of f16 are among the kinds of matrices that subgroups of 32 threads hold. */
static int vulkan_has_kind(void *instance, void *physical) {
  int (*kinds)(void *device, uint32_t *count, VulkanMatrixKind *all) = NULL;
  VulkanMatrixKind all[VULKAN_MATRIX_KINDS];
  uint32_t count = VULKAN_MATRIX_KINDS;
  void *function = vulkan_function(instance, "vkGetPhysicalDeviceCooperativeMatrixPropertiesNV");
  memcpy(&kinds, &function, sizeof kinds);
  for (uint32_t i = 0; i < count; i++) all[i] = (VulkanMatrixKind){.type = VULKAN_MATRIX_KIND};
  if (!kinds || kinds(physical, &count, all) < 0) return 0;
  for (uint32_t i = 0; i < count; i++) {
    const VulkanMatrixKind *k = &all[i];
    const int fits = k->rows == 16 && k->columns == 16 && k->depth == 16 && k->scope == VULKAN_OF_SUBGROUP;
    if (fits && k->left == VULKAN_IS_F16 && k->right == VULKAN_IS_F16 && k->sums == VULKAN_IS_F32) return 1;
  }
  return 0;
}

/* The same for modules of cooperative matrices, besides numbers of 16 bits. */
static VulkanMatrixFeatures vulkan_matrices(void *instance, void *physical) {
  VulkanMatrixFeatures none = {.memory.type = VULKAN_MEMORY_MODEL, .matrices.type = VULKAN_MATRICES}, has = none;
  VulkanMoreFeatures features = {.type = VULKAN_MORE_FEATURES, .next = &has.memory};
  VulkanSubgroups subgroups = {.type = VULKAN_SUBGROUPS};
  VulkanMoreProperties about = {.type = VULKAN_MORE_PROPERTIES, .next = &subgroups};
  has.memory.next = &has.matrices;
  if (!vulkan_function || !vulkan_numbers16(physical).storage.buffers) return none;
  if (!vulkan_has_extension(physical, "VK_NV_cooperative_matrix")) return none;
  vulkan_more_features(physical, &features);
  vulkan_more_properties(physical, &about);
  if (!has.memory.model || !has.matrices.matrices || subgroups.size != VULKAN_WARP) return none;
  none.memory.model = none.matrices.matrices = vulkan_has_kind(instance, physical);
  return none;
}

/* The threads of a subgroup, which exchange values in compute shaders; 0 where they cannot. */
static uint32_t vulkan_subgroup(void *physical) {
  enum { STAGE = 0x20, OPERATIONS = 1 | 0x10 }; /* compute; basic ones, and shuffles */
  VulkanSubgroups about = {.type = VULKAN_SUBGROUPS};
  VulkanMoreProperties properties = {.type = VULKAN_MORE_PROPERTIES, .next = &about};
  if (!vulkan_more_properties || !vulkan_is(physical, VULKAN_1_1)) return 0;
  vulkan_more_properties(physical, &properties);
  return about.stages & STAGE && (about.operations & OPERATIONS) == OPERATIONS ? about.size : 0;
}

/* The device's properties of floats. */
static VulkanFloats vulkan_floats(void *physical) {
  VulkanFloats floats = {.type = VULKAN_FLOATS};
  VulkanMoreProperties about = {.type = VULKAN_MORE_PROPERTIES, .next = &floats};
  if (vulkan_more_properties && vulkan_is(physical, VULKAN_1_2)) vulkan_more_properties(physical, &about);
  return floats;
}

static int vulkan_keeps_nan(const VulkanFloats *floats, int bits) {
  return (int)(bits == 64 ? floats->keeps64 : bits == 32 ? floats->keeps32 : floats->keeps16);
}

/* Where widths depend on each other, a module asks it of 32 bits alone, or not at all. */
static int vulkan_keeps_denorms(const VulkanFloats *floats, int bits) {
  const int independent = floats->denorm_independence == VULKAN_ALL_INDEPENDENT;
  if (bits == 64) return floats->denorms64 && independent;
  if (bits == 16) return floats->denorms16 && independent;
  return floats->denorms32 && !(DEVICE_FLOAT64 && floats->denorm_independence == VULKAN_NONE_INDEPENDENT);
}

static int vulkan_rounds16(const VulkanFloats *floats) {
  return floats->rounds16 && floats->rounding_independence != VULKAN_NONE_INDEPENDENT;
}

/* Whether an instruction asks for what the device does not promise. */
static int vulkan_refused(const uint32_t *instruction, const VulkanFloats *floats) {
  int nan = 0, denorms = 0;
  for (int bits = 16; bits <= 64; bits *= 2) {
    nan |= vulkan_keeps_nan(floats, bits);
    denorms |= vulkan_keeps_denorms(floats, bits);
  }
  switch (instruction[0] & 0xffff) {
    case SPIRV_CAPABILITY:
      return (instruction[1] == SPIRV_NAN_CAPABILITY && !nan) || (instruction[1] == SPIRV_DENORM_CAPABILITY && !denorms) ||
             (instruction[1] == SPIRV_ROUNDING_CAPABILITY && !vulkan_rounds16(floats));
    case SPIRV_EXTENSION:
      return !nan && !denorms && !vulkan_rounds16(floats) &&
             strcmp((const char *)(instruction + 1), "SPV_KHR_float_controls") == 0;
    case SPIRV_MODE:
      if (instruction[2] == SPIRV_ROUNDING_MODE) return !vulkan_rounds16(floats);
      if (instruction[2] == SPIRV_NAN_MODE) return !vulkan_keeps_nan(floats, (int)instruction[3]);
      return instruction[2] == SPIRV_DENORM_MODE && !vulkan_keeps_denorms(floats, (int)instruction[3]);
    default: return 0;
  }
}

/* Copies a module without such instructions; returns the size of the copy in bytes. */
static size_t vulkan_copied(uint32_t *words, const DeviceModule *module, const VulkanFloats *floats) {
  const uint32_t *from = module->words, *const end = from + module->size / sizeof *from;
  uint32_t *to = words;
  for (uint32_t length = SPIRV_HEADER; from < end; from += length) {
    if (from != module->words) length = from[0] >> 16;
    if (from != module->words && vulkan_refused(from, floats)) continue;
    memcpy(to, from, length * sizeof *to);
    to += length;
  }
  return (size_t)(to - words) * sizeof *to;
}
