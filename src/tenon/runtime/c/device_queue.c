/* Creates and destroys what queue_open opens. */
static void device_destroy(DeviceQueue *d) {
  if (!d) return;
  queue_close(d);
  free(d->options.text);
  free(d->kernels);
  free(d);
}

static DeviceQueue *device_create(
    const DeviceNetwork *network, const uint8_t *weights, const char *options, int *status) {
  DeviceQueue *d = calloc(1, sizeof *d);
  void **kernels = calloc(network->step_count + 1, sizeof *kernels);
  if (!d || !kernels || !device_read_options(&d->options, options)) {
    free(d);
    free(kernels);
    *status = device_failed(DEVICE_NO_MEMORY, "out of memory");
    return NULL;
  }
  d->network = network;
  d->kernels = kernels;
  *status = queue_open(d, weights);
  if (*status == 0) return d;
  device_destroy(d);
  return NULL;
}

/* Queues consecutive steps. */
static int device_launch_steps(DeviceQueue *d, size_t first, size_t end, const int *iterations) {
  int status = 0;
  for (size_t i = first; status == 0 && i < end; i++) {
    status = device_launch(d, i, iterations);
    if (status == 0) status = queue_stamp(d, DEVICE_FIRST_STEP + i);
  }
  return status;
}

/* Whether the sizes among the inputs are in their ranges. */
static int device_check(const DeviceNetwork *n, const uint8_t *tensors) {
  return n->check ? n->check(tensors) : 0;
}

/* Runs the network once. */
static int device_checked_run(DeviceQueue *d, uint8_t *tensors) {
  const int status = device_check(d->network, tensors);
  return status ? status : device_run(d, tensors);
}

/* Runs the network once, and gives the nanoseconds of the copies and of every step. */
static int device_times(DeviceQueue *d, uint8_t *tensors, uint64_t *nanoseconds) {
  const int status = device_check(d->network, tensors);
  memset(nanoseconds, 0, (DEVICE_FIRST_STEP + d->network->step_count) * sizeof *nanoseconds);
  return status ? status : device_timed_run(d, tensors, nanoseconds);
}
