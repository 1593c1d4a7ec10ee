/* Reads what launches computed while a network runs on an OpenCL device.  It stands behind opencl_runs.c. */

/* Waits for all launches before. */
static int queue_read(DeviceQueue *d, unsigned region, size_t offset, void *to, size_t size) {
  void **const event = opencl_event(d);
  const int status = cl.EnqueueReadBuffer(d->queue, d->regions[region], 1, offset, size, to, 0, NULL, event);
  return status ? status : queue_stamp(d, DEVICE_DOWNLOAD);
}
