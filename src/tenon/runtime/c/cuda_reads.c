/* Reads what launches computed while a network runs on a CUDA device.  It stands behind cuda_streams.c. */

/* Waits for all launches before. */
static int queue_read(DeviceQueue *d, unsigned region, size_t offset, void *to, size_t size) {
  uint8_t *const held = d->ports + d->network->sizes[DEVICE_MUTABLE];
  int status = cu.MemcpyDtoHAsync_v2(held, d->regions[region] + offset, size, d->stream);
  if (status == 0) status = queue_stamp(d, DEVICE_DOWNLOAD);
  if (status == 0) status = cu.StreamSynchronize(d->stream);
  if (status == 0) memcpy(to, held, size);
  return status ? status : queue_stamp(d, CUDA_IDLE);
}
