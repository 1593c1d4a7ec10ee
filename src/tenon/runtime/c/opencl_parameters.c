/* Threads of a group for kernels that run in groups of any size: measured, and kept in files for any number of networks
   and devices.

   A file has a section for each device, "device: NAME", with lines of a kernel's key and the threads of its groups; the
   last line of a kernel counts, so that files can be joined.  It stands behind opencl_programs.c. */
static const char opencl_parameters_title[] = "tenon gpu parameters 1";

typedef struct {
  char *text; /* of a file, to be freed; its lines are texts of their own */
  size_t size;
} OpenclParameters;

/* `text` is the content of a file or NULL, and becomes its own. */
static OpenclParameters opencl_parameters_of(uint8_t *text, size_t size) {
  OpenclParameters p = {(char *)text, size};
  if (p.text && strncmp(p.text, opencl_parameters_title, sizeof opencl_parameters_title - 1) == 0) return p;
  free(p.text);
  return (OpenclParameters){NULL, 0};
}

static OpenclParameters opencl_read_parameters(const char *path) {
  size_t size = 0;
  uint8_t *text = device_file(path, 0, &size);
  return opencl_parameters_of(text, size);
}

/* The threads that the file states for a kernel on the device; 0 if it has none. */
static size_t opencl_stated_group(const OpenclParameters *p, const char *device, const char *key) {
  size_t group = 0;
  int is_own = 0;
  for (const char *line = p->text; line && *line;) {
    const size_t length = strcspn(line, "\r\n");
    if (strncmp(line, "device: ", 8) == 0) {
      is_own = strlen(device) == length - 8 && strncmp(line + 8, device, length - 8) == 0;
    } else if (is_own && strncmp(line, key, strlen(key)) == 0 && line[strlen(key)] == ' ') {
      group = strtoul(line + strlen(key), NULL, 10);
    }
    line += length + strspn(line + length, "\r\n");
  }
  return group;
}

/* Uses what a file states; returns whether it has all kernels whose groups can be chosen. */
static int opencl_use_parameters(DeviceQueue *d, OpenclParameters p) {
  int is_complete = p.text != NULL;
  for (size_t i = 0; p.text && i < d->network->step_count; i++) {
    const DeviceStep *s = &d->network->steps[i];
    const size_t group = s->group ? 0 : opencl_stated_group(&p, d->name, s->key);
    if (group > 0 && group <= d->steps[i].largest) d->steps[i].group = group;
    if (group == 0 && s->group == 0) is_complete = 0;
  }
  free(p.text);
  return is_complete;
}

/* Adds the groups to a file, beside what it has of other networks and devices. */
static int opencl_write_parameters(const DeviceQueue *d, const char *path) {
  char beside[DEVICE_PATH];
  OpenclParameters old = opencl_read_parameters(path);
  FILE *file = device_beside(path, d, beside) ? device_new_file(beside) : NULL;
  int good = file != NULL;
  if (good) good = fprintf(file, "%s\ndevice: %s\n", old.text ? old.text : opencl_parameters_title, d->name) > 0;
  for (size_t i = 0; good && i < d->network->step_count; i++) {
    const DeviceStep *s = &d->network->steps[i];
    if (s->group == 0) good = fprintf(file, "%s %zu\n", s->key, d->steps[i].group) > 0;
  }
  free(old.text);
  if (file) good &= fclose(file) == 0;
  if (good && device_moved(beside, path)) return 0;
  if (file) remove(beside);
  return device_failed(DEVICE_UNWRITTEN, "the parameters cannot be written to %s", path);
}
