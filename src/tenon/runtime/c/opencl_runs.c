/* Runs of networks whose launches are measured first: for the sizes of groups, and for the longest time of a launch.  It
   stands behind opencl_queue.c. */

/* A launch says how large its groups are. */
static int queue_regroup(DeviceQueue *d) {
  (void)d;
  return 0;
}

/* Runs the network once, and cuts the launches that take longer than they may. */
static int opencl_measured_run(DeviceQueue *d, uint8_t *tensors) {
  const size_t count = d->network->step_count;
  const double limit = 1e6 * d->options.kernel_time;
  uint64_t *nanoseconds = calloc(DEVICE_FIRST_STEP + count, sizeof *nanoseconds);
  if (!nanoseconds) return opencl_out_of_memory();
  for (size_t i = 0; i < count; i++) d->steps[i].longest = 0;
  const int status = device_timed_run(d, tensors, nanoseconds);
  free(nanoseconds);
  for (size_t i = 0; i < count; i++) {
    const double slices = (double)d->steps[i].longest / limit + 1; /* the whole part is rounded up */
    d->steps[i].slices = slices < UINT16_MAX ? (unsigned)slices : UINT16_MAX;
  }
  d->is_measured = 1;
  return status;
}

static int device_run(DeviceQueue *d, uint8_t *tensors) {
  if (d->options.tune && !d->is_tuned) {
    const int status = device_tune(d, tensors);
    if (status) return status;
  }
  const int is_limited = d->options.kernel_time > 0 && !d->is_measured;
  return is_limited ? opencl_measured_run(d, tensors) : opencl_run(d, tensors);
}
