/* Runs a network on an OpenCL device: launches in the order of one queue.  It stands behind device_groups.c. */

static int opencl_allocate(DeviceQueue *d, const uint8_t *weights) {
  int status = 0;
  for (unsigned i = 0; status == 0 && i < DEVICE_REGIONS; i++) {
    const size_t size = d->network->sizes[i];
    const int copied = i == DEVICE_CONSTANT && size > 0;
    const uint64_t flags = copied ? OPENCL_READ_ONLY | OPENCL_COPY : OPENCL_READ_WRITE;
    void *const from = copied ? (void *)(uintptr_t)weights : NULL;
    d->regions[i] = cl.CreateBuffer(d->context, flags, size ? size : 1, from, &status);
  }
  if (status == 0) status = opencl_create_images(d);
  return status ? opencl_failed(status, "allocating memory of the device") : 0;
}

/* Every kernel takes the three regions, and behind the numbers of iterations the offsets that differ between its
   steps. */
static int opencl_bind(DeviceQueue *d) {
  int status = 0;
  for (size_t i = 0; i < d->network->step_count; i++) {
    const DeviceStep *s = &d->network->steps[i];
    const int *offsets = &d->network->offsets[s->first_offset];
    for (unsigned j = 0; status == 0 && j < DEVICE_REGIONS; j++) {
      status = cl.SetKernelArg(d->kernels[i], j, sizeof(void *), &d->regions[j]);
    }
    for (unsigned j = 0; status == 0 && j < s->offset_count; j++) {
      status = cl.SetKernelArg(d->kernels[i], DEVICE_REGIONS + s->loops + j, sizeof(int), &offsets[j]);
    }
  }
  if (status == 0) status = opencl_bind_images(d);
  return status ? opencl_failed(status, "binding the kernels") : 0;
}

static int opencl_out_of_memory(void) {
  return device_failed(DEVICE_NO_MEMORY, "out of memory");
}

/* Opens the device with the hints that it takes. */
static int opencl_connect(DeviceQueue *d, const char *version) {
  int status = 0;
  char *extensions = opencl_text(d->device, OPENCL_EXTENSIONS);
  if (!extensions) return opencl_out_of_memory();
  const OpenclContext hints = opencl_context(&d->options, d->quirk, extensions, version);
  const intptr_t *given = hints.words[0] ? hints.words : NULL;
  d->context = cl.CreateContext(given, 1, &d->device, NULL, NULL, &status);
  if (status && given) d->context = cl.CreateContext(NULL, 1, &d->device, NULL, NULL, &status);
  if (status == 0) d->queue = opencl_queue(&d->options, extensions, d->context, d->device, &status);
  free(extensions);
  return status ? opencl_failed(status, "creating a queue") : 0;
}

static int queue_open(DeviceQueue *d, const uint8_t *weights) {
  char version[256] = "", driver[256] = "";
  DeviceIdentity id;
  int status = opencl_find(&d->device);
  if (status) return status;
  d->steps = calloc(d->network->step_count + 1, sizeof *d->steps);
  d->groups = calloc(d->network->step_count + 1, sizeof *d->groups);
  if (!d->steps || !d->groups) return opencl_out_of_memory();
  cl.GetDeviceInfo(d->device, OPENCL_NAME, sizeof d->name, d->name, NULL);
  cl.GetDeviceInfo(d->device, OPENCL_VERSION, sizeof version, version, NULL);
  cl.GetDeviceInfo(d->device, OPENCL_DRIVER, sizeof driver, driver, NULL);
  d->quirk = opencl_quirk(d->name);
  opencl_set_build_options(d);
  device_identify(&id, d->name, version, d->build_options, driver);
  if ((status = opencl_connect(d, version)) != 0) return status;
  if ((status = opencl_build(d, d->device, &id)) != 0) return status;
  device_use_stated_groups(d);
  if ((status = opencl_allocate(d, weights)) != 0) return status;
  return opencl_bind(d);
}

static void queue_close(DeviceQueue *d) {
  opencl_release_kernels(d);
  opencl_release_images(d);
  for (unsigned i = 0; i < DEVICE_REGIONS; i++) {
    if (d->regions[i]) cl.ReleaseMemObject(d->regions[i]);
  }
  if (d->queue) cl.ReleaseCommandQueue(d->queue);
  if (d->context) cl.ReleaseContext(d->context);
  free(d->steps);
  free(d->groups);
}

/* Where a command leaves its event, in a timed run. */
static void **opencl_event(DeviceQueue *d) {
  return d->nanoseconds ? &d->event : NULL;
}

/* In a timed run: waits for the last command, and adds its time by the device's clock. */
static int queue_stamp(DeviceQueue *d, size_t slot) {
  uint64_t started = 0, ended = 0;
  if (!d->nanoseconds) return 0;
  int status = cl.WaitForEvents(1, &d->event);
  if (status == 0) status = cl.GetEventProfilingInfo(d->event, OPENCL_STARTED, sizeof started, &started, NULL);
  if (status == 0) status = cl.GetEventProfilingInfo(d->event, OPENCL_ENDED, sizeof ended, &ended, NULL);
  cl.ReleaseEvent(d->event);
  d->nanoseconds[slot] += ended - started;
  if (slot < DEVICE_FIRST_STEP) return status;
  OpenclStep *step = &d->steps[slot - DEVICE_FIRST_STEP];
  if (ended - started > step->longest) step->longest = ended - started;
  return status;
}

/* Flushes the queue, or waits for it, as often as the driver needs it or the caller wants it. */
static int opencl_pace(DeviceQueue *d) {
  const unsigned window = d->options.queue_window, every = d->quirk->flush_every;
  d->queued++;
  if (window && d->queued % window == 0) return cl.Finish(d->queue);
  return every && d->queued % every == 0 ? cl.Flush(d->queue) : 0;
}

static int opencl_enqueue(DeviceQueue *d, size_t step, size_t first, size_t threads, const size_t *group) {
  void *const kernel = d->kernels[step], **const event = opencl_event(d);
  const int status =
      cl.EnqueueNDRangeKernel(d->queue, kernel, 1, first ? &first : NULL, &threads, group, 0, NULL, event);
  return status ? status : opencl_pace(d);
}

/* Whole groups, of which the kernel leaves out what is too much, in slices of as many groups. */
static int device_launch(DeviceQueue *d, size_t step, const int *iterations) {
  const size_t threads = d->network->steps[step].threads, group = d->groups[step].group;
  int status = 0;
  for (unsigned i = 0; status == 0 && i < d->network->steps[step].loops; i++) {
    status = cl.SetKernelArg(d->kernels[step], DEVICE_REGIONS + i, sizeof(int), &iterations[i]);
  }
  if (status) return status;
  if (threads < group) return opencl_enqueue(d, step, 0, threads, NULL);
  const size_t groups = (threads + group - 1) / group, slices = d->steps[step].slices;
  const size_t each = slices > 1 ? (groups + slices - 1) / slices : groups;
  for (size_t first = 0; status == 0 && first < groups; first += each) {
    const size_t count = groups - first < each ? groups - first : each;
    if (first > 0) status = queue_stamp(d, DEVICE_FIRST_STEP + step);
    if (status == 0) status = opencl_enqueue(d, step, first * group, count * group, &group);
  }
  return status;
}

static int opencl_upload(DeviceQueue *d, const uint8_t *tensors, const DevicePort *p) {
  void *device = d->regions[DEVICE_MUTABLE], **const event = opencl_event(d);
  if (p->size == 0) return 0;
  const int status =
      cl.EnqueueWriteBuffer(d->queue, device, 0, p->offset, p->size, tensors + p->offset, 0, NULL, event);
  return status ? status : queue_stamp(d, DEVICE_UPLOAD);
}

static int opencl_download(DeviceQueue *d, uint8_t *tensors, const DevicePort *p) {
  void *device = d->regions[DEVICE_MUTABLE], **const event = opencl_event(d);
  if (p->size == 0) return 0;
  const int status = cl.EnqueueReadBuffer(d->queue, device, 0, p->offset, p->size, tensors + p->offset, 0, NULL, event);
  return status ? status : queue_stamp(d, DEVICE_DOWNLOAD);
}

static int opencl_run(DeviceQueue *d, uint8_t *tensors) {
  const DeviceNetwork *n = d->network;
  int status = 0;
  d->queued = 0;
  for (size_t i = 0; status == 0 && i < n->input_count; i++) status = opencl_upload(d, tensors, &n->inputs[i]);
  if (status == 0) status = n->launch(d);
  for (size_t i = 0; status == 0 && i < n->output_count; i++) status = opencl_download(d, tensors, &n->outputs[i]);
  const int finished = cl.Finish(d->queue);
  if (status == 0) status = finished;
  return status ? opencl_failed(status, "running the network") : 0;
}

/* By a queue of its own, whose commands are timed. */
static int device_timed_run(DeviceQueue *d, uint8_t *tensors, uint64_t *nanoseconds) {
  int status = 0;
  void *const usual = d->queue;
  void *const timed = cl.CreateCommandQueue(d->context, d->device, OPENCL_PROFILING, &status);
  if (status) return opencl_failed(status, "creating a queue that times kernels");
  d->queue = timed;
  d->nanoseconds = nanoseconds;
  status = opencl_run(d, tensors);
  d->nanoseconds = NULL;
  d->queue = usual;
  cl.ReleaseCommandQueue(timed);
  return status;
}
