/* The kernels of a network: compiled, or as they were compiled before.  It stands behind opencl_device.c. */

/* How a step is launched: a kernel that needs many registers runs in smaller groups, where any will do. */
static int opencl_step(DeviceQueue *d, size_t step, void *device) {
  const DeviceStep *s = &d->network->steps[step];
  DeviceGroup *own = &d->groups[step];
  own->group = s->group ? s->group : DEVICE_GROUP;
  own->largest = own->group;
  cl.GetKernelWorkGroupInfo(
      d->kernels[step], device, OPENCL_LARGEST_GROUP, sizeof own->largest, &own->largest, NULL);
  if (own->largest >= own->group) return 0;
  if (s->group) {
    return device_failed(DEVICE_UNFIT, "the OpenCL device runs %zu threads in a group of kernel %s, and the network has "
                         "%zu: it was made for another device", own->largest, s->kernel, own->group);
  }
  if (own->largest == 0) own->largest = 1;
  own->group = own->largest;
  return 0;
}

static int opencl_kernels(DeviceQueue *d, void *device) {
  int status = 0;
  for (size_t i = 0; status == 0 && i < d->network->step_count; i++) {
    d->kernels[i] = cl.CreateKernel(d->program, d->network->steps[i].kernel, &status);
    if (status) return opencl_failed(status, "creating the kernels");
    status = opencl_step(d, i, device);
  }
  return status;
}

static void opencl_release_kernels(DeviceQueue *d) {
  for (size_t i = 0; i < d->network->step_count; i++) {
    if (d->kernels[i]) cl.ReleaseKernel(d->kernels[i]);
    d->kernels[i] = NULL;
  }
  if (d->program) cl.ReleaseProgram(d->program);
  d->program = NULL;
}

static int opencl_compile(DeviceQueue *d, void *device) {
  int status = 0;
  char *text = device_kernels();
  if (!text) return device_failed(DEVICE_NO_MEMORY, "out of memory");
  d->program = cl.CreateProgramWithSource(d->context, 1, (const char **)&text, NULL, &status);
  free(text);
  if (status) return opencl_failed(status, "creating the program");
  status = cl.BuildProgram(d->program, 1, &device, d->build_options, NULL, NULL);
  return status ? opencl_refused(d, device, status) : opencl_kernels(d, device);
}

/* Whether the kernels are those that were compiled before. */
static int opencl_reuse(DeviceQueue *d, void *device, const DeviceIdentity *id) {
  DeviceBinary b;
  int status = 0, each = 0;
  if (!device_cached(id, &d->options, &b)) return 0;
  d->program = cl.CreateProgramWithBinary(d->context, 1, &device, &b.size, &b.data, &each, &status);
  if (status == 0) status = each;
  if (status == 0) status = cl.BuildProgram(d->program, 1, &device, d->build_options, NULL, NULL);
  if (status == 0) status = opencl_kernels(d, device);
  free(b.content);
  if (status) opencl_release_kernels(d);
  return status == 0;
}

static void opencl_keep(DeviceQueue *d, const DeviceIdentity *id) {
  size_t size = 0;
  if (!d->options.cache) return;
  if (cl.GetProgramInfo(d->program, OPENCL_BINARY_SIZES, sizeof size, &size, NULL) != 0 || size == 0) return;
  uint8_t *binary = malloc(size);
  if (binary && cl.GetProgramInfo(d->program, OPENCL_BINARIES, sizeof binary, &binary, NULL) == 0) {
    device_keep(id, &d->options, binary, size);
  }
  free(binary);
}

static int opencl_build(DeviceQueue *d, void *device, const DeviceIdentity *id) {
  if (opencl_reuse(d, device, id)) return 0;
  const int status = opencl_compile(d, device);
  if (status == 0) opencl_keep(d, id);
  return status;
}
