/* Options of a network on a device: lines "word: text", those of the caller before those that the bundle was made with
   (DEVICE_OPTIONS of the generated file); a word counts where it stands first.  Words that a language has no use for have
   no effect.  It stands behind device_network.c. */
enum { DEVICE_BINARIES = 4 };
typedef enum { DEVICE_NO_IMAGES, DEVICE_WEIGHT_IMAGES, DEVICE_ALL_IMAGES, DEVICE_USUAL_IMAGES } DeviceImages;
typedef enum { DEVICE_USUAL, DEVICE_LOW, DEVICE_NORMAL, DEVICE_HIGH } DeviceHint;

/* The content of a file that a caller has in memory, which stays there as long as the network does. */
typedef struct {
  const void *data; /* NULL: none */
  size_t size;
} DeviceContent;

typedef struct {
  char *text;            /* of which the others are parts */
  const char *cache;     /* the folder of compiled kernels; NULL: none */
  const char *binaries[DEVICE_BINARIES]; /* files of such a folder, which are only read */
  int binary_count;
  const char *parameters; /* a file of groups for kernels; NULL: none */
  const char *tune;       /* the same, to which those are added that it lacks */
  DeviceContent binary_in_memory, parameters_in_memory;
  int any_driver;        /* kernels that another version of the driver has compiled are tried */
  unsigned queue_window; /* launches after which the queue is waited for; 0: only the end of a run is */
  double kernel_time;    /* milliseconds of a launch, above which it is cut; 0: none is */
  DeviceHint performance, priority;
  DeviceImages images; /* what is read from images; DEVICE_USUAL_IMAGES: what the device reads faster so */
} DeviceOptions;

/* The text behind a word in its first line; NULL if there is none. */
static const char *device_option(const char *const *lines, size_t count, const char *word) {
  const size_t length = strlen(word);
  for (size_t i = 0; i < count; i++) {
    if (strncmp(lines[i], word, length) == 0 && strncmp(lines[i] + length, ": ", 2) == 0) return lines[i] + length + 2;
  }
  return NULL;
}

static DeviceHint device_hint(const char *text) {
  static const char *const names[] = {"", "low", "normal", "high"};
  for (int i = DEVICE_LOW; text && i <= DEVICE_HIGH; i++) {
    if (strcmp(text, names[i]) == 0) return (DeviceHint)i;
  }
  return DEVICE_USUAL;
}

static DeviceImages device_images(const char *text) {
  static const char *const names[] = {"off", "on", "all"};
  for (int i = DEVICE_NO_IMAGES; text && i <= DEVICE_ALL_IMAGES; i++) {
    if (strcmp(text, names[i]) == 0) return (DeviceImages)i;
  }
  return DEVICE_USUAL_IMAGES;
}

/* "ADDRESS SIZE". */
static DeviceContent device_content(const char *text) {
  DeviceContent content = {NULL, 0};
  void *data;
  size_t size;
  if (text && sscanf(text, "%p %zu", &data, &size) == 2) content = (DeviceContent){data, size};
  return content;
}

static void device_read_lines(DeviceOptions *o, const char *const *lines, size_t count) {
  const char *text;
  o->cache = device_option(lines, count, "cache");
  if (o->cache && !*o->cache) o->cache = NULL;
  for (size_t i = 0; i < count && o->binary_count < DEVICE_BINARIES; i++) {
    if ((text = device_option(lines + i, 1, "binary")) != NULL) o->binaries[o->binary_count++] = text;
  }
  o->parameters = device_option(lines, count, "parameters");
  o->binary_in_memory = device_content(device_option(lines, count, "binary_in_memory"));
  o->parameters_in_memory = device_content(device_option(lines, count, "parameters_in_memory"));
  o->tune = device_option(lines, count, "tune");
  if (o->tune && !*o->tune) o->tune = NULL;
  o->any_driver = (text = device_option(lines, count, "reuse")) != NULL && strcmp(text, "same-gpu") == 0;
  if ((text = device_option(lines, count, "queue_window")) != NULL) o->queue_window = (unsigned)strtoul(text, NULL, 10);
  if ((text = device_option(lines, count, "kernel_time")) != NULL) o->kernel_time = strtod(text, NULL);
  o->images = device_images(device_option(lines, count, "images"));
  o->performance = device_hint(device_option(lines, count, "performance"));
  o->priority = device_hint(device_option(lines, count, "priority"));
}

/* Returns whether there was memory for them. */
static int device_read_options(DeviceOptions *o, const char *given) {
  enum { MOST = 64 };
  const char *lines[MOST];
  size_t count = 0;
  const size_t length = given ? strlen(given) : 0;
  o->text = malloc(length + sizeof DEVICE_OPTIONS + 1);
  if (!o->text) return 0;
  snprintf(o->text, length + sizeof DEVICE_OPTIONS + 1, "%s\n%s", given ? given : "", DEVICE_OPTIONS);
  for (char *at = o->text; at && count < MOST; count++) {
    char *end = strchr(at, '\n');
    lines[count] = at;
    if (end) *end++ = 0;
    at = end;
  }
  device_read_lines(o, lines, count);
  return 1;
}
