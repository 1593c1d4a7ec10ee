/* Kernels as a driver has compiled them, kept in files: in a folder of the user's, or beside the program.

   A file says for which kernels (DEVICE_DIGEST of the generated file), device and driver it is, and has a checksum: one
   that is damaged or for something else is not used, and one that cannot be written is left out.  It is written beside
   its place and moved there, so that a process that is killed leaves none half-written.  It stands behind
   device_options.c. */
#ifndef _WIN32
#include <fcntl.h>
#include <sys/stat.h>
#endif

enum { DEVICE_PATH = 4096, DEVICE_IDENTITY = 2048 };

/* The key of compiled kernels: `text` has to be the same; `driver` as well, unless others are allowed. */
typedef struct {
  char text[DEVICE_IDENTITY], driver[256];
} DeviceIdentity;

typedef struct {
  uint8_t *content; /* of the file, to be freed */
  const uint8_t *data;
  size_t size;
} DeviceBinary;

/* FNV-1a: against damage, not against attacks. */
static uint64_t device_checksum(const void *data, size_t size) {
  const uint8_t *bytes = data;
  uint64_t sum = 0xcbf29ce484222325;
  for (size_t i = 0; i < size; i++) sum = (sum ^ bytes[i]) * 0x100000001b3;
  return sum;
}

static void device_identify(
    DeviceIdentity *id, const char *name, const char *version, const char *built, const char *driver) {
  snprintf(id->text, sizeof id->text, "tenon kernels 1\nkernels: %s\ndevice: %s\nversion: %s\nbuilt: %s\n",
           DEVICE_DIGEST, name, version, built);
  snprintf(id->driver, sizeof id->driver, "driver: %s\n", driver);
}

/* Opens a file; one of a cache only if nobody else may write it, because it holds code. */
static FILE *device_open(const char *path, int is_cache) {
#ifdef _WIN32
  (void)is_cache;
  return fopen(path, "rb");
#else
  struct stat about;
  const int file = open(path, is_cache ? O_RDONLY | O_NOFOLLOW | O_CLOEXEC : O_RDONLY | O_CLOEXEC);
  if (file < 0) return NULL;
  const int is_own = fstat(file, &about) == 0 && S_ISREG(about.st_mode) &&
                     (!is_cache || (about.st_uid == geteuid() && !(about.st_mode & (S_IWGRP | S_IWOTH))));
  FILE *stream = is_own ? fdopen(file, "rb") : NULL;
  if (!stream) close(file);
  return stream;
#endif
}

static uint8_t *device_file(const char *path, int is_cache, size_t *size) {
  FILE *file = device_open(path, is_cache);
  if (!file) return NULL;
  long length = fseek(file, 0, SEEK_END) == 0 ? ftell(file) : -1;
  uint8_t *content = length > 0 && fseek(file, 0, SEEK_SET) == 0 ? malloc((size_t)length + 1) : NULL;
  if (content && fread(content, 1, (size_t)length, file) != (size_t)length) {
    free(content);
    content = NULL;
  }
  fclose(file);
  if (!content) return NULL;
  content[length] = 0;
  *size = (size_t)length;
  return content;
}

/* The kernels in the content of a file: identity, driver, size and checksum, an empty line, the kernels. */
static int device_fits(const DeviceIdentity *id, int any_driver, DeviceBinary *b, size_t length) {
  unsigned long long size, sum;
  int header = 0;
  const char *at = (const char *)b->content;
  if (strncmp(at, id->text, strlen(id->text)) != 0) return 0;
  at += strlen(id->text);
  if (!any_driver && strncmp(at, id->driver, strlen(id->driver)) != 0) return 0;
  if ((at = strchr(at, '\n')) == NULL) return 0;
  if (sscanf(at, "\nbytes: %llu\nchecksum: %llx%n", &size, &sum, &header) != 2 || !header) return 0;
  if (strncmp(at + header, "\n\n", 2) != 0) return 0;
  b->data = (const uint8_t *)at + header + 2;
  b->size = length - (size_t)(b->data - b->content);
  return size == b->size && sum == device_checksum(b->data, b->size);
}

static int device_read_file(
    const DeviceIdentity *id, const DeviceOptions *o, const char *path, int is_cache, DeviceBinary *b) {
  size_t length = 0;
  b->content = device_file(path, is_cache, &length);
  if (b->content && device_fits(id, o->any_driver, b, length)) return 1;
  free(b->content);
  b->content = NULL;
  return 0;
}

/* A copy with a zero behind it; NULL if there is nothing, or no memory. */
static uint8_t *device_copied(const DeviceContent *content) {
  uint8_t *copy = content->data ? malloc(content->size + 1) : NULL;
  if (!copy) return NULL;
  memcpy(copy, content->data, content->size);
  copy[content->size] = 0;
  return copy;
}

static int device_read_memory(const DeviceIdentity *id, const DeviceOptions *o, DeviceBinary *b) {
  b->content = device_copied(&o->binary_in_memory);
  if (b->content && device_fits(id, o->any_driver, b, o->binary_in_memory.size)) return 1;
  free(b->content);
  b->content = NULL;
  return 0;
}

/* The name of the file in the folder does not depend on the driver: a new one replaces what it cannot use. */
static int device_cache_path(const DeviceIdentity *id, const DeviceOptions *o, char *path) {
  const unsigned long long number = device_checksum(id->text, strlen(id->text));
  const int length = o->cache ? snprintf(path, DEVICE_PATH, "%s/%016llx.kernels", o->cache, number) : -1;
  return length > 0 && length < DEVICE_PATH;
}

/* Finds compiled kernels; the caller frees their content. */
static int device_cached(const DeviceIdentity *id, const DeviceOptions *o, DeviceBinary *b) {
  char path[DEVICE_PATH];
  if (device_cache_path(id, o, path) && device_read_file(id, o, path, 1, b)) return 1;
  for (int i = 0; i < o->binary_count; i++) {
    if (device_read_file(id, o, o->binaries[i], 0, b)) return 1;
  }
  return device_read_memory(id, o, b);
}

/* A new file, with what is already there of that name gone. */
static FILE *device_new_file(const char *path) {
#ifdef _WIN32
  return fopen(path, "wb");
#else
  unlink(path);
  const int file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR);
  FILE *stream = file >= 0 ? fdopen(file, "wb") : NULL;
  if (file >= 0 && !stream) close(file);
  return stream;
#endif
}

/* The number of the process and an address: no other thread writes a file of that name. */
static int device_beside(const char *path, const void *owner, char *beside) {
#ifdef _WIN32
  const unsigned long process = GetCurrentProcessId();
#else
  const unsigned long process = (unsigned long)getpid();
#endif
  const int length = snprintf(beside, DEVICE_PATH, "%s.%lu.%p", path, process, owner);
  return length > 0 && length < DEVICE_PATH;
}

static int device_moved(const char *from, const char *to) {
#ifdef _WIN32
  return MoveFileExA(from, to, MOVEFILE_REPLACE_EXISTING) != 0;
#else
  return rename(from, to) == 0;
#endif
}

/* Keeps compiled kernels, if there is a folder for them. */
static void device_keep(const DeviceIdentity *id, const DeviceOptions *o, const void *data, size_t size) {
  char path[DEVICE_PATH], beside[DEVICE_PATH];
  if (!device_cache_path(id, o, path) || !device_beside(path, o, beside)) return;
#ifdef _WIN32
  CreateDirectoryA(o->cache, NULL);
#else
  mkdir(o->cache, S_IRWXU);
#endif
  FILE *file = device_new_file(beside);
  if (!file) return;
  const unsigned long long sum = device_checksum(data, size);
  int good = fprintf(file, "%s%sbytes: %zu\nchecksum: %016llx\n\n", id->text, id->driver, size, sum) > 0;
  good &= fwrite(data, 1, size, file) == size;
  good &= fclose(file) == 0;
  if (!good || !device_moved(beside, path)) remove(beside);
}
