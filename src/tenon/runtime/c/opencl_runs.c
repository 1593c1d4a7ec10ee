/* Runs of networks whose launches are measured first: for the sizes of groups, and for the longest time of a launch.  It
   stands behind opencl_queue.c. */
enum { OPENCL_TUNING_ROUNDS = 3 };

/* The least time of each step in some runs. */
static int opencl_least_times(DeviceQueue *d, uint8_t *tensors, uint64_t *least) {
  const size_t count = DEVICE_FIRST_STEP + d->network->step_count;
  uint64_t *times = malloc(count * sizeof *times);
  if (!times) return opencl_out_of_memory();
  int status = 0;
  for (int round = 0; status == 0 && round < OPENCL_TUNING_ROUNDS; round++) {
    memset(times, 0, count * sizeof *times);
    status = device_timed_run(d, tensors, times);
    for (size_t i = 0; i < count; i++) {
      if (round == 0 || times[i] < least[i]) least[i] = times[i];
    }
  }
  free(times);
  return status;
}

/* Lets all kernels whose groups can be chosen run in groups of that size, where the device has them. */
static void opencl_set_groups(DeviceQueue *d, size_t group) {
  for (size_t i = 0; i < d->network->step_count; i++) {
    if (d->network->steps[i].group == 0) d->steps[i].group = group < d->steps[i].largest ? group : d->steps[i].largest;
  }
}

/* Measures all sizes of groups, and leaves the fastest of each kernel in `best`. */
static int opencl_try_groups(DeviceQueue *d, uint8_t *tensors, uint64_t *least, uint64_t *times, size_t *best) {
  static const size_t groups[] = {DEVICE_GROUP, 16, 32, 128, 256, 512}; /* the usual size wins where all are alike */
  int status = 0;
  for (size_t g = 0; status == 0 && g < sizeof groups / sizeof groups[0]; g++) {
    opencl_set_groups(d, groups[g]);
    status = opencl_least_times(d, tensors, times);
    for (size_t i = 0; status == 0 && i < d->network->step_count; i++) {
      const uint64_t own = times[DEVICE_FIRST_STEP + i];
      if (g > 0 && own >= least[i]) continue;
      least[i] = own;
      best[i] = d->steps[i].group;
    }
  }
  return status;
}

/* Chooses the groups of kernels that the file does not have yet, and adds them to it.  The runs leave no trace in the
   tensors, of which states would become those of later runs. */
static int opencl_tune(DeviceQueue *d, uint8_t *tensors) {
  const size_t count = d->network->step_count, size = d->network->sizes[DEVICE_MUTABLE];
  uint64_t *least = calloc(2 * count + DEVICE_FIRST_STEP, sizeof *least);
  size_t *best = calloc(count + 1, sizeof *best);
  uint8_t *before = malloc(size + 1);
  if (before) memcpy(before, tensors, size);
  int status = least && best && before ? 0 : opencl_out_of_memory();
  if (status == 0) status = opencl_try_groups(d, tensors, least, least + count, best);
  for (size_t i = 0; status == 0 && i < count; i++) d->steps[i].group = best[i];
  if (before) memcpy(tensors, before, size);
  free(before);
  free(least);
  free(best);
  d->is_tuned = 1;
  return status ? status : opencl_write_parameters(d, d->options.tune);
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
    const int status = opencl_tune(d, tensors);
    if (status) return status;
  }
  const int is_limited = d->options.kernel_time > 0 && !d->is_measured;
  return is_limited ? opencl_measured_run(d, tensors) : opencl_run(d, tensors);
}
