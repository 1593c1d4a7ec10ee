/* The constant region as an image of texels of four floats, from which kernels read what they load by fours where the
   option or the device's quirk says so.  The buffer and its image are the same memory, and neither is written.  It stands
   behind opencl_device.c. */
enum { OPENCL_HAS_IMAGES = 0x1016, OPENCL_MOST_TEXELS = 0x1040 };
enum { OPENCL_RGBA = 0x10b5, OPENCL_FLOAT = 0x10de, OPENCL_IMAGE_OF_BUFFER = 0x10f6, OPENCL_TEXEL = 16 };

/* Whether the device has images as large as the constants. */
static int opencl_has_images(const DeviceQueue *d) {
  const size_t texels = d->network->sizes[DEVICE_CONSTANT] / OPENCL_TEXEL;
  unsigned has = 0;
  size_t most = 0;
  cl.GetDeviceInfo(d->device, OPENCL_HAS_IMAGES, sizeof has, &has, NULL);
  cl.GetDeviceInfo(d->device, OPENCL_MOST_TEXELS, sizeof most, &most, NULL);
  return has && texels > 0 && texels <= most;
}

static int opencl_uses_images(const DeviceQueue *d) {
  const int wanted = d->options.images == DEVICE_AUTO ? d->quirk->images : d->options.images == DEVICE_ON;
  return DEVICE_IMAGES && wanted && opencl_has_images(d);
}

/* Options for the compiler of the kernels. */
static void opencl_set_build_options(DeviceQueue *d) {
  d->uses_images = opencl_uses_images(d);
  snprintf(d->build_options, sizeof d->build_options, "%s%s", opencl_options(d->device),
           d->uses_images ? " -DTENON_IMAGES" : "");
}

/* The image, as the last argument of every kernel. */
static int opencl_bind_image(DeviceQueue *d) {
  const OpenclFormat format = {OPENCL_RGBA, OPENCL_FLOAT};
  const OpenclImage about = {.type = OPENCL_IMAGE_OF_BUFFER,
                             .width = d->network->sizes[DEVICE_CONSTANT] / OPENCL_TEXEL,
                             .buffer = d->regions[DEVICE_CONSTANT]};
  int status = 0;
  if (!d->uses_images) return 0;
  d->image = cl.CreateImage(d->context, OPENCL_READ_ONLY, &format, &about, NULL, &status);
  for (size_t i = 0; status == 0 && i < d->network->step_count; i++) {
    const unsigned last = DEVICE_REGIONS + d->network->steps[i].loops;
    status = cl.SetKernelArg(d->kernels[i], last, sizeof(void *), &d->image);
  }
  return status;
}
