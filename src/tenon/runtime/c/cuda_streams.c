/* Runs on streams and tensors of the caller's, which are on the device already.  It stands behind cuda_queue.c. */
enum { CUDA_NO_TIMES = 2 };

/* Whether an input is a state, which lies where an output does. */
static int cuda_has_states(const DeviceNetwork *n) {
  for (size_t i = 0; i < n->input_count * n->output_count; i++) {
    const DevicePort *input = &n->inputs[i / n->output_count], *output = &n->outputs[i % n->output_count];
    if (input->size && output->size && input->offset == output->offset) return 1;
  }
  return 0;
}

/* The data that such runs need besides the others. */
static int cuda_prepare_inside(DeviceQueue *d) {
  int status = 0;
  if (cuda_has_states(d->network)) {
    return device_failed(DEVICE_UNFIT, "the network keeps states, which lie in the memory of the processor between runs: "
                                       "it cannot be queued on a stream");
  }
  if (!d->inside && !d->network->reads) status = cuda_record(d, cuda_enqueue_inside, &d->inside);
  if (status == 0 && !d->queued && (status = cu.EventCreate(&d->queued, CUDA_NO_TIMES)) != 0) {
    return cuda_failed(status, "creating an event");
  }
  return status;
}

/* Copies the inputs that lie elsewhere on the device. */
static int cuda_copy_inside(DeviceQueue *d, const uint64_t *inputs, void *stream) {
  int status = 0;
  for (size_t i = 0; status == 0 && i < d->network->input_count; i++) {
    const DevicePort *p = &d->network->inputs[i];
    const uint64_t own = d->regions[DEVICE_MUTABLE] + p->offset;
    if (inputs[i] == 0 || inputs[i] == own || p->size == 0) continue;
    status = cu.MemcpyDtoDAsync_v2(own, inputs[i], p->size, stream);
  }
  return status;
}

/* Reads the inputs that may be sizes, and checks them. */
static int cuda_check_inside(DeviceQueue *d, void *stream) {
  const DeviceNetwork *n = d->network;
  int status = 0;
  if (!n->check) return 0;
  for (size_t i = 0; status == 0 && i < n->input_count; i++) {
    const DevicePort *p = &n->inputs[i];
    if (p->size > DEVICE_NUMBER) continue;
    status = cu.MemcpyDtoHAsync_v2(d->ports + p->offset, d->regions[DEVICE_MUTABLE] + p->offset, p->size, stream);
  }
  if (status == 0) status = cu.StreamSynchronize(stream);
  return status ? status : n->check(d->ports);
}

/* Queues the kernels on a stream, and waits for those that compute which others run. */
static int cuda_launch_inside(DeviceQueue *d, void *stream) {
  void *const own = d->stream;
  if (d->inside) return cu.GraphLaunch(d->inside, stream);
  d->stream = stream;
  const int status = d->network->launch(d);
  d->stream = own;
  return status;
}

/* Queues a run behind what the stream has, and behind earlier runs. */
static int device_queue_run(DeviceQueue *d, const uint64_t *inputs, void *stream) {
  const int is_first = d->queued == NULL;
  int status = cu.CtxSetCurrent(d->context);
  if (status) return cuda_failed(status, "queueing the network");
  if ((status = cuda_prepare_inside(d)) != 0) return status;
  if (!is_first) status = cu.StreamWaitEvent(stream, d->queued, 0);
  if (status == 0) status = cuda_copy_inside(d, inputs, stream);
  if (status == 0) status = cuda_check_inside(d, stream);
  if (status == 0) status = cuda_launch_inside(d, stream);
  if (status == 0) status = cu.EventRecord(d->queued, stream);
  return status ? cuda_failed(status, "queueing the network") : 0;
}

/* Lets a stream wait for the last run that was queued. */
static int device_wait(DeviceQueue *d, void *stream) {
  int status = cu.CtxSetCurrent(d->context);
  if (status == 0 && d->queued) status = cu.StreamWaitEvent(stream, d->queued, 0);
  return status ? cuda_failed(status, "waiting for the network") : 0;
}

/* Where the inputs and outputs lie on the device. */
static uint64_t device_tensors(const DeviceQueue *d) {
  return d->regions[DEVICE_MUTABLE];
}
