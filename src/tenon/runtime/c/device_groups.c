/* Threads of a group for kernels that run in groups of any size: measured, and kept in files for any number of networks
   and devices.

   A file has a section for each device, "device: NAME", with lines of a kernel's key and the threads of its groups; the
   last line of a kernel counts, so that files can be joined.  It stands behind the file with DeviceQueue, whose `name`,
   `groups` and `is_tuned` it uses. */
enum { DEVICE_TUNING_ROUNDS = 3 };

/* Launches steps in groups of the sizes in `groups` from now on. */
static int queue_regroup(DeviceQueue *d);
static int device_timed_run(DeviceQueue *d, uint8_t *tensors, uint64_t *nanoseconds);

static const char device_parameters_title[] = "tenon gpu parameters 1";

typedef struct {
  char *text; /* of a file, to be freed; its lines are texts of their own */
  size_t size;
} DeviceParameters;

/* `text` is the content of a file or NULL, and becomes its own. */
static DeviceParameters device_parameters_of(uint8_t *text, size_t size) {
  DeviceParameters p = {(char *)text, size};
  if (p.text && strncmp(p.text, device_parameters_title, sizeof device_parameters_title - 1) == 0) return p;
  free(p.text);
  return (DeviceParameters){NULL, 0};
}

static DeviceParameters device_read_parameters(const char *path) {
  size_t size = 0;
  uint8_t *text = device_file(path, 0, &size);
  return device_parameters_of(text, size);
}

/* The threads that the file states for a kernel on the device; 0 if it has none. */
static size_t device_stated_group(const DeviceParameters *p, const char *device, const char *key) {
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
static int device_use_parameters(DeviceQueue *d, DeviceParameters p) {
  int is_complete = p.text != NULL;
  for (size_t i = 0; p.text && i < d->network->step_count; i++) {
    const DeviceStep *s = &d->network->steps[i];
    const size_t group = s->group ? 0 : device_stated_group(&p, d->name, s->key);
    if (group > 0 && group <= d->groups[i].largest) d->groups[i].group = group;
    if (group == 0 && s->group == 0) is_complete = 0;
  }
  free(p.text);
  return is_complete;
}

/* Adds the groups to a file, beside what it has of other networks and devices. */
static int device_write_parameters(const DeviceQueue *d, const char *path) {
  char beside[DEVICE_PATH];
  DeviceParameters old = device_read_parameters(path);
  FILE *file = device_beside(path, d, beside) ? device_new_file(beside) : NULL;
  int good = file != NULL;
  if (good) good = fprintf(file, "%s\ndevice: %s\n", old.text ? old.text : device_parameters_title, d->name) > 0;
  for (size_t i = 0; good && i < d->network->step_count; i++) {
    const DeviceStep *s = &d->network->steps[i];
    if (s->group == 0) good = fprintf(file, "%s %zu\n", s->key, d->groups[i].group) > 0;
  }
  free(old.text);
  if (file) good &= fclose(file) == 0;
  if (good && device_moved(beside, path)) return 0;
  if (file) remove(beside);
  return device_failed(DEVICE_UNWRITTEN, "the parameters cannot be written to %s", path);
}

/* Takes the sizes that the options state. */
static void device_use_stated_groups(DeviceQueue *d) {
  const DeviceContent *stated = &d->options.parameters_in_memory;
  device_use_parameters(d, device_parameters_of(device_copied(stated), stated->size));
  if (d->options.parameters) device_use_parameters(d, device_read_parameters(d->options.parameters));
  if (d->options.tune) d->is_tuned = device_use_parameters(d, device_read_parameters(d->options.tune));
}

/* The least time of each step in some runs. */
static int device_least_times(DeviceQueue *d, uint8_t *tensors, uint64_t *least) {
  const size_t count = DEVICE_FIRST_STEP + d->network->step_count;
  uint64_t *times = malloc(count * sizeof *times);
  if (!times) return device_failed(DEVICE_NO_MEMORY, "out of memory");
  int status = 0;
  for (int round = 0; status == 0 && round < DEVICE_TUNING_ROUNDS; round++) {
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
static int device_set_groups(DeviceQueue *d, size_t size) {
  for (size_t i = 0; i < d->network->step_count; i++) {
    DeviceGroup *own = &d->groups[i];
    if (d->network->steps[i].group == 0) own->group = size < own->largest ? size : own->largest;
  }
  return queue_regroup(d);
}

/* Measures all sizes of groups, and leaves the fastest of each kernel in `best`. */
static int device_try_groups(DeviceQueue *d, uint8_t *tensors, uint64_t *least, uint64_t *times, size_t *best) {
  static const size_t sizes[] = {DEVICE_GROUP, 16, 32, 128, 256, 512}; /* the usual size wins where all are alike */
  int status = 0;
  for (size_t g = 0; status == 0 && g < sizeof sizes / sizeof sizes[0]; g++) {
    status = device_set_groups(d, sizes[g]);
    if (status == 0) status = device_least_times(d, tensors, times);
    for (size_t i = 0; status == 0 && i < d->network->step_count; i++) {
      const uint64_t own = times[DEVICE_FIRST_STEP + i];
      if (g > 0 && own >= least[i]) continue;
      least[i] = own;
      best[i] = d->groups[i].group;
    }
  }
  return status;
}

/* Chooses the groups of kernels that the file does not have yet, and adds them to it.  The runs leave no trace in the
   tensors, of which states would become those of later runs. */
static int device_tune(DeviceQueue *d, uint8_t *tensors) {
  const size_t count = d->network->step_count, size = d->network->sizes[DEVICE_MUTABLE];
  uint64_t *least = calloc(2 * count + DEVICE_FIRST_STEP, sizeof *least);
  size_t *best = calloc(count + 1, sizeof *best);
  uint8_t *before = malloc(size + 1);
  if (before) memcpy(before, tensors, size);
  int status = least && best && before ? 0 : device_failed(DEVICE_NO_MEMORY, "out of memory");
  if (status == 0) status = device_try_groups(d, tensors, least, least + count, best);
  for (size_t i = 0; status == 0 && i < count; i++) d->groups[i].group = best[i];
  if (before) memcpy(tensors, before, size);
  free(before);
  free(least);
  free(best);
  d->is_tuned = 1;
  if (status == 0) status = queue_regroup(d);
  return status ? status : device_write_parameters(d, d->options.tune);
}
