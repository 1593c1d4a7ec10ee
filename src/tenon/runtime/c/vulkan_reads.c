/* Reads what launches computed while a network runs on a Vulkan device.  It stands behind vulkan_runs.c. */

/* Runs all launches before. */
static int queue_read(DeviceQueue *d, unsigned region, size_t offset, void *to, size_t size) {
  const size_t held = d->network->sizes[DEVICE_MUTABLE];
  const VulkanCopy copy = {offset, held, size};
  vulkan_wait(d->commands, VULKAN_AT_SHADER, VULKAN_AT_COPY);
  vk.CmdCopyBuffer(d->commands, d->regions[region].buffer, d->staging.buffer, 1, &copy);
  vulkan_wait(d->commands, VULKAN_AT_COPY, VULKAN_AT_HOST);
  int status = queue_stamp(d, DEVICE_DOWNLOAD);
  if (status == 0) status = vulkan_flush(d);
  if (status == 0) memcpy(to, d->ports + held, size);
  return status;
}
