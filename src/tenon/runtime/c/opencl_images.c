/* Buffers as images of texels of four elements, from which kernels read what they load by fours where the option or the
   device's quirk says so.  A buffer and its images are the same memory; a kernel that reads one of them writes nothing
   in it, for which the activations have a second buffer.  It stands behind opencl_device.c. */
enum { OPENCL_HAS_IMAGES = 0x1016, OPENCL_MOST_TEXELS = 0x1040 };
enum { OPENCL_RGBA = 0x10b5, OPENCL_IMAGE_OF_BUFFER = 0x10f6 };

/* A kind of texels: the type of the four elements, and the bytes of all. */
typedef struct {
  unsigned type;
  size_t bytes;
} OpenclTexels;

/* Floats, floats of 16 bits, integers, and the bits of floats of 16: the order of the numbers of images
   (codegen/opencl/images.py). */
static const OpenclTexels opencl_texels[OPENCL_KINDS] = {{0x10de, 16}, {0x10dd, 8}, {0x10d9, 16}, {0x10db, 8}};

static size_t opencl_object_size(const DeviceQueue *d, unsigned object) {
  return d->network->sizes[object == OPENCL_SECOND ? DEVICE_ACTIVATIONS : object];
}

/* The images that steps read, as bits, where weights or all operands are read from images. */
static unsigned opencl_images_of(const DeviceQueue *d, size_t step, DeviceImages images) {
  const unsigned weights = (1u << OPENCL_KINDS) - 1; /* images of the first object */
  if (images == DEVICE_NO_IMAGES) return 0;
  return d->network->steps[step].images & (images == DEVICE_ALL_IMAGES ? ~0u : weights);
}

/* Whether the device has images that are so large. */
static int opencl_has_images(const DeviceQueue *d, DeviceImages images) {
  unsigned has = 0, used = 0;
  size_t most = 0;
  cl.GetDeviceInfo(d->device, OPENCL_HAS_IMAGES, sizeof has, &has, NULL);
  cl.GetDeviceInfo(d->device, OPENCL_MOST_TEXELS, sizeof most, &most, NULL);
  for (size_t i = 0; i < d->network->step_count; i++) used |= opencl_images_of(d, i, images);
  for (unsigned i = 0; i < OPENCL_IMAGES; i++) {
    const size_t texels = opencl_object_size(d, i / OPENCL_KINDS) / opencl_texels[i % OPENCL_KINDS].bytes;
    if (used >> i & 1 && (texels == 0 || texels > most)) return 0;
  }
  return has && used;
}

/* The setting that is wanted, or as much of it as there is. */
static DeviceImages opencl_choose_images(const DeviceQueue *d) {
  int images = d->options.images == DEVICE_USUAL_IMAGES ? d->quirk->images : d->options.images;
  if (images > DEVICE_IMAGES) images = DEVICE_IMAGES;
  while (images > DEVICE_NO_IMAGES && !opencl_has_images(d, (DeviceImages)images)) images--;
  return (DeviceImages)images;
}

/* Options for the compiler of the kernels. */
static void opencl_set_build_options(DeviceQueue *d) {
  d->images_read = opencl_choose_images(d);
  snprintf(d->build_options, sizeof d->build_options, "%s -DTENON_IMAGES=%d", opencl_options(d->device),
           (int)d->images_read);
}

static int opencl_create_image(DeviceQueue *d, unsigned number) {
  const unsigned object = number / OPENCL_KINDS;
  const OpenclTexels *kind = &opencl_texels[number % OPENCL_KINDS];
  const OpenclFormat format = {OPENCL_RGBA, kind->type};
  const OpenclImage about = {.type = OPENCL_IMAGE_OF_BUFFER,
                             .width = opencl_object_size(d, object) / kind->bytes,
                             .buffer = object == OPENCL_SECOND ? d->second : d->regions[object]};
  int status = 0;
  d->images[number] = cl.CreateImage(d->context, OPENCL_READ_ONLY, &format, &about, NULL, &status);
  return status;
}

/* The second buffer of activations, where these are read from images, and the images that steps read. */
static int opencl_create_images(DeviceQueue *d) {
  const size_t size = d->network->sizes[DEVICE_ACTIVATIONS];
  unsigned used = 0;
  int status = 0;
  if (d->images_read == DEVICE_ALL_IMAGES) {
    d->second = cl.CreateBuffer(d->context, OPENCL_READ_WRITE, size ? size : 1, NULL, &status);
  }
  for (size_t i = 0; i < d->network->step_count; i++) used |= opencl_images_of(d, i, d->images_read);
  for (unsigned i = 0; status == 0 && i < OPENCL_IMAGES; i++) {
    if (used >> i & 1) status = opencl_create_image(d, i);
  }
  return status;
}

/* The last arguments of each kernel: the second buffer, and its images by their numbers. */
static int opencl_bind_images(DeviceQueue *d) {
  int status = 0;
  for (size_t i = 0; i < d->network->step_count; i++) {
    const unsigned used = opencl_images_of(d, i, d->images_read);
    unsigned next = DEVICE_REGIONS + d->network->steps[i].loops + d->network->steps[i].offset_count;
    if (d->second) status = cl.SetKernelArg(d->kernels[i], next++, sizeof(void *), &d->second);
    for (unsigned j = 0; status == 0 && j < OPENCL_IMAGES; j++) {
      if (used >> j & 1) status = cl.SetKernelArg(d->kernels[i], next++, sizeof(void *), &d->images[j]);
    }
    if (status) return status;
  }
  return 0;
}

static void opencl_release_images(DeviceQueue *d) {
  for (unsigned i = 0; i < OPENCL_IMAGES; i++) {
    if (d->images[i]) cl.ReleaseMemObject(d->images[i]);
  }
  if (d->second) cl.ReleaseMemObject(d->second);
}
