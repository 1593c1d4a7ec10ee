/* The modules of shaders as a device takes them.  They ask that NaNs, infinities and signs of zeros are kept, which
   devices of Vulkan 1.2 may promise (others mostly do it): it is left out for those that do not.  It stands behind
   vulkan_api.c. */
enum { VULKAN_1_2 = 1 << 22 | 2 << 12, VULKAN_MORE_PROPERTIES = 1000059001, VULKAN_FLOATS = 1000197000 };
enum { SPIRV_HEADER = 5, SPIRV_EXTENSION = 10, SPIRV_MODE = 16, SPIRV_CAPABILITY = 17 };
enum { SPIRV_KEEPING = 4461, SPIRV_CAN_KEEP = 4466 };

/* What the device promises of floats. */
static VulkanFloats vulkan_floats(void *physical) {
  VulkanFloats floats = {.type = VULKAN_FLOATS};
  VulkanMoreProperties about = {.type = VULKAN_MORE_PROPERTIES, .next = &floats};
  vk.GetPhysicalDeviceProperties(physical, &about.properties);
  if (vulkan_more_properties && about.properties.version >= VULKAN_1_2) vulkan_more_properties(physical, &about);
  return floats;
}

/* Whether an instruction asks for what the device does not promise. */
static int vulkan_refused(const uint32_t *instruction, const VulkanFloats *floats) {
  const int none = !floats->keeps32 && !floats->keeps64;
  switch (instruction[0] & 0xffff) {
    case SPIRV_CAPABILITY: return none && instruction[1] == SPIRV_CAN_KEEP;
    case SPIRV_EXTENSION: return none && strcmp((const char *)(instruction + 1), "SPV_KHR_float_controls") == 0;
    case SPIRV_MODE:
      return instruction[2] == SPIRV_KEEPING && !(instruction[3] == 64 ? floats->keeps64 : floats->keeps32);
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
