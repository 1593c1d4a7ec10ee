/* Runs a network on a CUDA device: copies and launches are recorded once as a graph.  It stands behind
   device_groups.c. */

/* Where the driver's compiler leaves its report. */
typedef struct {
  char text[sizeof device_message - 128];
  void *values[2];
} CudaReport;
static const int cuda_report_options[] = {CUDA_ERROR_LOG, CUDA_ERROR_LOG_SIZE};

static void cuda_open_report(CudaReport *report) {
  report->text[0] = 0;
  report->values[0] = report->text;
  report->values[1] = (void *)(uintptr_t)(sizeof report->text - 1);
}

/* The report is the message. */
static int cuda_refused(const CudaReport *report, int status) {
  const int newer = status == CUDA_NO_BINARY || status == CUDA_INVALID_PTX || status == CUDA_NEWER_PTX;
  status = cuda_failed(status, "loading the kernels");
  const size_t length = strlen(device_message);
  snprintf(device_message + length, sizeof device_message - length, "%s: %s",
           newer ? " (kernels for older GPUs are those of the target cuda-sm75)" : "", report->text);
  return status;
}

/* A kernel that needs many registers runs in smaller groups, where any will do. */
static void cuda_group(DeviceQueue *d, size_t step) {
  const unsigned stated = d->network->steps[step].group;
  DeviceGroup *own = &d->groups[step];
  int largest = 0;
  own->group = own->largest = stated ? stated : DEVICE_GROUP;
  if (cu.FuncGetAttribute(&largest, CUDA_LARGEST_GROUP, d->kernels[step]) != 0 || largest <= 0 || stated) return;
  own->largest = (size_t)largest;
  if (own->group > own->largest) own->group = own->largest;
}

static int cuda_functions(DeviceQueue *d) {
  for (size_t i = 0; i < d->network->step_count; i++) {
    const int shared = (int)d->network->steps[i].shared;
    int status = cu.ModuleGetFunction(&d->kernels[i], d->module, d->network->steps[i].kernel);
    if (status == 0 && shared) status = cu.FuncSetAttribute(d->kernels[i], CUDA_SHARED_BYTES, shared);
    if (status) return cuda_failed(status, "finding the kernels");
    cuda_group(d, i);
  }
  return 0;
}

/* Whether the kernels are those that were compiled before. */
static int cuda_reuse(DeviceQueue *d, const DeviceIdentity *id) {
  DeviceBinary b;
  if (!device_cached(id, &d->options, &b)) return 0;
  int status = cu.ModuleLoadDataEx(&d->module, b.data, 0, NULL, NULL);
  free(b.content);
  if (status == 0 && (status = cuda_functions(d)) != 0) cu.ModuleUnload(d->module);
  if (status) d->module = NULL;
  return status == 0;
}

/* Compiles the kernels to code of the device, which can be kept. */
static int cuda_link(DeviceQueue *d, const DeviceIdentity *id, char *text, CudaReport *report) {
  void *linker = NULL, *code = NULL;
  size_t size = 0;
  int status = cu.LinkCreate_v2(2, cuda_report_options, report->values, &linker);
  if (status == 0) {
    status = cu.LinkAddData_v2(linker, CUDA_PTX, text, strlen(text) + 1, d->network->steps[0].kernel, 0, NULL, NULL);
  }
  if (status == 0) status = cu.LinkComplete(linker, &code, &size);
  if (status == 0) status = cu.ModuleLoadDataEx(&d->module, code, 0, NULL, NULL);
  if (status == 0) device_keep(id, &d->options, code, size);
  if (linker) cu.LinkDestroy(linker);
  return status;
}

static int cuda_build(DeviceQueue *d) {
  const CudaFacts facts = cuda_facts(d->device);
  DeviceIdentity id;
  CudaReport report;
  device_identify(&id, facts.name, facts.version, "", facts.driver);
  if (cuda_reuse(d, &id)) return 0;
  char *text = device_kernels();
  if (!text) return device_failed(DEVICE_NO_MEMORY, "out of memory");
  int status = -1;
  if (d->options.cache) {
    cuda_open_report(&report);
    status = cuda_link(d, &id, text, &report);
  }
  if (status) {
    cuda_open_report(&report);
    status = cu.ModuleLoadDataEx(&d->module, text, 2, cuda_report_options, report.values);
  }
  free(text);
  return status ? cuda_refused(&report, status) : cuda_functions(d);
}

static int cuda_allocate(DeviceQueue *d, const uint8_t *weights) {
  const size_t *sizes = d->network->sizes;
  int status = 0;
  for (unsigned i = 0; status == 0 && i < DEVICE_REGIONS; i++) {
    status = cu.MemAlloc_v2(&d->regions[i], sizes[i] ? sizes[i] : 1);
  }
  if (status == 0) status = cu.MemHostAlloc((void **)&d->ports, sizes[DEVICE_MUTABLE] + DEVICE_NUMBER, 0);
  if (status == 0 && sizes[DEVICE_CONSTANT]) {
    status = cu.MemcpyHtoD_v2(d->regions[DEVICE_CONSTANT], weights, sizes[DEVICE_CONSTANT]);
  }
  return status ? cuda_failed(status, "allocating memory of the device") : 0;
}

/* Lets a step that is recorded next wait for what it depends on alone; at last, what follows for all steps. */
static int cuda_stand_behind(DeviceQueue *d, size_t step) {
  const DeviceNetwork *n = d->network;
  const CudaNodes *nodes = &d->nodes;
  if (!nodes->steps) return 0;
  size_t count = 0;
  for (size_t i = step ? n->ends[step - 1] : 0; i < n->ends[step]; i++) nodes->waited[count++] = nodes->steps[n->waited[i]];
  if (count == 0 && nodes->first) nodes->waited[count++] = nodes->first;
  return cu.StreamUpdateCaptureDependencies(d->stream, nodes->waited, count, CUDA_BEHIND_THESE_ONLY);
}

/* The node that was recorded last; NULL if there is none. */
static int cuda_last_node(DeviceQueue *d, void **node) {
  int recording = 0;
  uint64_t id = 0;
  void *graph = NULL, *const *last = NULL;
  size_t count = 0;
  const int status = cu.StreamGetCaptureInfo_v2(d->stream, &recording, &id, &graph, &last, &count);
  *node = count ? last[0] : NULL;
  return status;
}

/* Whether a step may begin early: behind other steps, whose times are not measured one by one. */
static int cuda_is_early(const DeviceQueue *d, size_t step) {
  const DeviceNetwork *n = d->network;
  if (!n->early || !cuda_launch_with || d->stamping || step == 0) return 0;
  return !d->nodes.steps || n->ends[step] > n->ends[step - 1];
}

static int device_launch(DeviceQueue *d, size_t step, const int *iterations) {
  const DeviceStep *s = &d->network->steps[step];
  const size_t usual = d->groups[step].group, group = s->threads < usual ? s->threads : usual;
  const unsigned groups = (unsigned)((s->threads + group - 1) / group);
  const int *offsets = &d->network->offsets[s->first_offset];
  void *parameters[DEVICE_REGIONS + DEVICE_LOOPS + DEVICE_OFFSETS];
  unsigned next = 0;
  for (unsigned i = 0; i < DEVICE_REGIONS; i++) parameters[next++] = &d->regions[i];
  for (unsigned i = 0; i < s->loops; i++) parameters[next++] = (void *)(uintptr_t)&iterations[i];
  for (unsigned i = 0; i < s->offset_count; i++) parameters[next++] = (void *)(uintptr_t)&offsets[i];
  int status = cuda_stand_behind(d, step);
  if (status) return status;
  if (cuda_is_early(d, step)) {
    CudaLaunchAttribute early = {CUDA_EARLY, {1}};
    const CudaLaunch launch = {{groups, 1, 1}, {(unsigned)group, 1, 1}, s->shared, d->stream, &early, 1};
    status = cuda_launch_with(&launch, d->kernels[step], parameters, NULL);
  } else {
    status = cu.LaunchKernel(d->kernels[step], groups, 1, 1, (unsigned)group, 1, 1, s->shared, d->stream, parameters,
                             NULL);
  }
  return status || !d->nodes.steps ? status : cuda_last_node(d, &d->nodes.steps[step]);
}

/* In a timed run: records an event behind the last command, whose time goes to that slot. */
static int queue_stamp(DeviceQueue *d, size_t slot) {
  if (!d->stamping) return 0;
  if (d->stamp_count == d->stamp_room) {
    const size_t room = 2 * d->stamp_room + 64;
    CudaStamp *stamps = realloc(d->stamps, room * sizeof *stamps);
    if (!stamps) return device_failed(DEVICE_NO_MEMORY, "out of memory");
    d->stamps = stamps;
    d->stamp_room = room;
  }
  CudaStamp *stamp = &d->stamps[d->stamp_count];
  if (d->stamp_count == d->event_count) {
    const int status = cu.EventCreate(&stamp->event, 0);
    if (status) return status;
    d->event_count++;
  }
  stamp->slot = slot;
  d->stamp_count++;
  return d->network->reads ? cu.EventRecord(stamp->event, d->stream)
                           : cu.EventRecordWithFlags(stamp->event, d->stream, CUDA_EXTERNAL_EVENT);
}

/* Records launches which wait for those alone on which they depend; in a timed run they follow each other. */
static int cuda_launch_apart(DeviceQueue *d) {
  const DeviceNetwork *n = d->network;
  CudaNodes *nodes = &d->nodes;
  if (!n->waited || d->stamping) return n->launch(d);
  nodes->steps = calloc(2 * n->step_count + 1, sizeof *nodes->steps);
  if (!nodes->steps) return device_failed(DEVICE_NO_MEMORY, "out of memory");
  nodes->waited = nodes->steps + n->step_count;
  int status = cuda_last_node(d, &nodes->first);
  if (status == 0) status = n->launch(d);
  if (status == 0) status = cuda_stand_behind(d, n->step_count);
  free(nodes->steps);
  nodes->steps = NULL;
  return status;
}

/* Queues one run. */
static int cuda_enqueue(DeviceQueue *d) {
  const DeviceNetwork *n = d->network;
  const uint64_t ports = d->regions[DEVICE_MUTABLE];
  int status = queue_stamp(d, DEVICE_UPLOAD);
  for (size_t i = 0; status == 0 && i < n->input_count; i++) {
    const DevicePort *p = &n->inputs[i];
    if (p->size) status = cu.MemcpyHtoDAsync_v2(ports + p->offset, d->ports + p->offset, p->size, d->stream);
  }
  if (status == 0) status = queue_stamp(d, DEVICE_UPLOAD);
  if (status == 0) status = cuda_launch_apart(d);
  for (size_t i = 0; status == 0 && i < n->output_count; i++) {
    const DevicePort *p = &n->outputs[i];
    if (p->size) status = cu.MemcpyDtoHAsync_v2(d->ports + p->offset, ports + p->offset, p->size, d->stream);
  }
  return status ? status : queue_stamp(d, DEVICE_DOWNLOAD);
}

/* Queues the kernels alone. */
static int cuda_enqueue_inside(DeviceQueue *d) {
  return cuda_launch_apart(d);
}

/* Records what a function queues as a graph. */
static int cuda_record(DeviceQueue *d, int (*enqueue)(DeviceQueue *), void **graph) {
  void *recorded = NULL;
  int status = cu.StreamBeginCapture_v2(d->stream, CUDA_CAPTURE_OF_THREAD);
  if (status) return cuda_failed(status, "recording the network");
  status = enqueue(d);
  const int ended = cu.StreamEndCapture(d->stream, &recorded);
  if (status == 0) status = ended;
  if (status == 0) status = cu.GraphInstantiateWithFlags(graph, recorded, 0);
  if (recorded) cu.GraphDestroy(recorded);
  return status ? cuda_failed(status, "recording the network") : 0;
}

/* Greater priorities have smaller numbers; 0 is the usual one. */
static int cuda_priority(const DeviceOptions *o) {
  int least = 0, greatest = 0;
  cu.CtxGetStreamPriorityRange(&least, &greatest);
  return o->priority == DEVICE_HIGH ? greatest : o->priority == DEVICE_LOW ? least : 0;
}

static int queue_open(DeviceQueue *d, const uint8_t *weights) {
  int status = cuda_find(&d->device);
  if (status) return status;
  snprintf(d->name, sizeof d->name, "%s (CUDA)", cuda_facts(d->device).name);
  d->groups = calloc(d->network->step_count + 1, sizeof *d->groups);
  if (!d->groups) return device_failed(DEVICE_NO_MEMORY, "out of memory");
  status = cu.DevicePrimaryCtxRetain(&d->context, d->device);
  if (status == 0) status = cu.CtxSetCurrent(d->context);
  if (status == 0) status = cu.StreamCreateWithPriority(&d->stream, CUDA_NON_BLOCKING, cuda_priority(&d->options));
  if (status) return cuda_failed(status, "opening the CUDA device");
  if ((status = cuda_build(d)) != 0) return status;
  device_use_stated_groups(d);
  if ((status = cuda_allocate(d, weights)) != 0) return status;
  return d->network->reads ? 0 : cuda_record(d, cuda_enqueue, &d->graph);
}

static void cuda_destroy_graphs(DeviceQueue *d) {
  if (d->graph) cu.GraphExecDestroy(d->graph);
  if (d->timed) cu.GraphExecDestroy(d->timed);
  if (d->inside) cu.GraphExecDestroy(d->inside);
  d->graph = d->timed = d->inside = NULL;
}

/* Records the launches again. */
static int queue_regroup(DeviceQueue *d) {
  const int status = cu.CtxSetCurrent(d->context);
  if (status) return cuda_failed(status, "recording the network");
  cuda_destroy_graphs(d);
  return d->network->reads ? 0 : cuda_record(d, cuda_enqueue, &d->graph);
}

static void queue_close(DeviceQueue *d) {
  free(d->groups);
  if (!d->context) return;
  cu.CtxSetCurrent(d->context);
  if (d->queued) cu.EventSynchronize(d->queued);
  cuda_destroy_graphs(d);
  if (d->queued) cu.EventDestroy_v2(d->queued);
  for (size_t i = 0; i < d->event_count; i++) cu.EventDestroy_v2(d->stamps[i].event);
  free(d->stamps);
  if (d->stream) cu.StreamDestroy_v2(d->stream);
  if (d->module) cu.ModuleUnload(d->module);
  if (d->ports) cu.MemFreeHost(d->ports);
  for (unsigned i = 0; i < DEVICE_REGIONS; i++) {
    if (d->regions[i]) cu.MemFree_v2(d->regions[i]);
  }
  cu.DevicePrimaryCtxRelease_v2(d->device);
}

/* Runs the network by a graph of it, or by queueing its commands if there is none. */
static int cuda_run(DeviceQueue *d, void *graph, uint8_t *tensors) {
  const DeviceNetwork *n = d->network;
  int status = cu.CtxSetCurrent(d->context);
  for (size_t i = 0; i < n->input_count; i++) {
    const DevicePort *p = &n->inputs[i];
    memcpy(d->ports + p->offset, tensors + p->offset, p->size);
  }
  if (status == 0 && d->queued) status = cu.StreamWaitEvent(d->stream, d->queued, 0);
  if (status == 0) status = graph ? cu.GraphLaunch(graph, d->stream) : cuda_enqueue(d);
  const int ended = cu.StreamSynchronize(d->stream);
  if (status == 0) status = ended;
  if (status) return cuda_failed(status, "running the network");
  for (size_t i = 0; i < n->output_count; i++) {
    const DevicePort *p = &n->outputs[i];
    memcpy(tensors + p->offset, d->ports + p->offset, p->size);
  }
  return 0;
}

static int device_run(DeviceQueue *d, uint8_t *tensors) {
  const int status = d->options.tune && !d->is_tuned ? device_tune(d, tensors) : 0;
  return status ? status : cuda_run(d, d->graph, tensors);
}

/* With an event behind each command, whose launches follow each other as in other runs. */
static int cuda_stamped_run(DeviceQueue *d, uint8_t *tensors) {
  int status = 0;
  const int is_recorded = d->timed != NULL;
  d->stamping = !is_recorded;
  if (!is_recorded) d->stamp_count = 0;
  if (!is_recorded && !d->network->reads) status = cuda_record(d, cuda_enqueue, &d->timed);
  if (status == 0) status = cuda_run(d, d->timed, tensors);
  d->stamping = 0;
  return status;
}

static int device_timed_run(DeviceQueue *d, uint8_t *tensors, uint64_t *nanoseconds) {
  int status = cu.CtxSetCurrent(d->context);
  if (status) return cuda_failed(status, "recording the network");
  status = cuda_stamped_run(d, tensors);
  for (size_t i = 1; status == 0 && i < d->stamp_count; i++) {
    float milliseconds = 0;
    if (d->stamps[i].slot == CUDA_IDLE) continue;
    status = cu.EventElapsedTime(&milliseconds, d->stamps[i - 1].event, d->stamps[i].event);
    if (status) return cuda_failed(status, "reading the times of kernels");
    nanoseconds[d->stamps[i].slot] += (uint64_t)(1e6 * milliseconds);
  }
  return status;
}
