/* The modules of shaders as a device takes them.  They ask that NaNs, infinities and signs of zeros are kept, and numbers
   below the normal ones, which devices of Vulkan 1.2 may promise (others mostly do it): it is left out for those that do
   not.  It stands behind vulkan_api.c. */
enum { VULKAN_1_2 = 1 << 22 | 2 << 12, VULKAN_MORE_PROPERTIES = 1000059001, VULKAN_FLOATS = 1000197000 };
enum { VULKAN_ALL_INDEPENDENT = 1, VULKAN_NONE_INDEPENDENT = 2 };
enum { SPIRV_HEADER = 5, SPIRV_EXTENSION = 10, SPIRV_MODE = 16, SPIRV_CAPABILITY = 17 };
enum { SPIRV_NAN_MODE = 4461, SPIRV_NAN_CAPABILITY = 4466, SPIRV_DENORM_MODE = 4459, SPIRV_DENORM_CAPABILITY = 4464 };

/* What the device promises of floats. */
static VulkanFloats vulkan_floats(void *physical) {
  VulkanFloats floats = {.type = VULKAN_FLOATS};
  VulkanMoreProperties about = {.type = VULKAN_MORE_PROPERTIES, .next = &floats};
  vk.GetPhysicalDeviceProperties(physical, &about.properties);
  if (vulkan_more_properties && about.properties.version >= VULKAN_1_2) vulkan_more_properties(physical, &about);
  return floats;
}

static int vulkan_keeps_nan(const VulkanFloats *floats, int bits) {
  return (int)(bits == 64 ? floats->keeps64 : floats->keeps32);
}

/* Where widths depend on each other, a module asks it of 32 bits alone, or not at all. */
static int vulkan_keeps_denorms(const VulkanFloats *floats, int bits) {
  if (bits == 64) return floats->denorms64 && floats->denorm_independence == VULKAN_ALL_INDEPENDENT;
  return floats->denorms32 && !(DEVICE_FLOAT64 && floats->denorm_independence == VULKAN_NONE_INDEPENDENT);
}

/* Whether an instruction asks for what the device does not promise. */
static int vulkan_refused(const uint32_t *instruction, const VulkanFloats *floats) {
  const int nan = vulkan_keeps_nan(floats, 32) || vulkan_keeps_nan(floats, 64);
  const int denorms = vulkan_keeps_denorms(floats, 32) || vulkan_keeps_denorms(floats, 64);
  switch (instruction[0] & 0xffff) {
    case SPIRV_CAPABILITY:
      return (instruction[1] == SPIRV_NAN_CAPABILITY && !nan) || (instruction[1] == SPIRV_DENORM_CAPABILITY && !denorms);
    case SPIRV_EXTENSION:
      return !nan && !denorms && strcmp((const char *)(instruction + 1), "SPV_KHR_float_controls") == 0;
    case SPIRV_MODE:
      if (instruction[2] == SPIRV_NAN_MODE) return !vulkan_keeps_nan(floats, (int)instruction[3]);
      return instruction[2] == SPIRV_DENORM_MODE && !vulkan_keeps_denorms(floats, (int)instruction[3]);
    default: return 0;
  }
}

/* Copies a shader's module without such instructions; returns its size in bytes. */
static size_t vulkan_copied(uint32_t *words, const DeviceShader *shader, const VulkanFloats *floats) {
  const uint32_t *from = shader->words, *const end = from + shader->size / sizeof *from;
  uint32_t *to = words;
  for (uint32_t length = SPIRV_HEADER; from < end; from += length) {
    if (from != shader->words) length = from[0] >> 16;
    if (from != shader->words && vulkan_refused(from, floats)) continue;
    memcpy(to, from, length * sizeof *to);
    to += length;
  }
  return (size_t)(to - words) * sizeof *to;
}
