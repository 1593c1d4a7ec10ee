/* Linux, Android, macOS: files, shared libraries, threads and processors.

   Compiled for one C library and used with others, so structures whose size differs between them stay out: locks are
   futexes on Linux. */

#define _GNU_SOURCE
#define _DARWIN_C_SOURCE
#include "platform.h"
#include "errors.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#endif

/* ----------------------------------------------------------------------------------------------------------- errors */

static TenonStatus system_error(const char *what, const char *path) {
  const int number = errno;
  const TenonStatus status = number == ENOENT || number == ENOTDIR ? TENON_NOT_FOUND
                             : number == ENOMEM                    ? TENON_OUT_OF_MEMORY
                                                                   : TENON_SYSTEM;
  return tn_fail(status, "cannot %s %s: %s", what, path, strerror(number));
}

/* ------------------------------------------------------------------------------------------------------------ files */

int tn_exists(const char *path) { return access(path, F_OK) == 0; }

int tn_is_folder(const char *path) {
  const int descriptor = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor >= 0) close(descriptor);
  return descriptor >= 0;
}

/* With offsets of 64 bits, the structures of all C libraries for Linux are the same. */
#if defined(__GLIBC__) && __SIZEOF_LONG__ == 4
#define dirent dirent64
#define readdir readdir64
#endif

void tn_list_folder(const char *path, void (*visit)(void *context, const char *name), void *context) {
  DIR *folder = opendir(path);
  if (folder == NULL) return;
  for (const struct dirent *entry; (entry = readdir(folder)) != NULL;) visit(context, entry->d_name);
  closedir(folder);
}

static TenonStatus open_file(const char *path, int *descriptor, size_t *size) {
  *descriptor = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC); /* a pipe without a writer is no file, and no reason to wait */
  if (*descriptor < 0) return system_error("open", path);
  const off_t end = lseek(*descriptor, 0, SEEK_END);
  if (end >= 0 && lseek(*descriptor, 0, SEEK_SET) == 0) {
    *size = (size_t)end;
    return TENON_OK;
  }
  const TenonStatus status = system_error("read", path);
  close(*descriptor);
  return status;
}

static int read_all(int descriptor, uint8_t *to, size_t size) {
  while (size > 0) {
    const ssize_t count = read(descriptor, to, size);
    if (count < 0 && errno == EINTR) continue;
    if (count == 0) errno = EIO; /* it became shorter */
    if (count <= 0) return -1;
    to += count;
    size -= (size_t)count;
  }
  return 0;
}

TenonStatus tn_file_read(const char *path, File *file) {
  int descriptor;
  size_t size;
  TenonStatus status = open_file(path, &descriptor, &size);
  if (status != TENON_OK) return status;
  uint8_t *data = malloc(size + 1);
  if (data == NULL) status = tn_fail(TENON_OUT_OF_MEMORY, "no memory to read %s", path);
  else if (read_all(descriptor, data, size) != 0) status = system_error("read", path);
  close(descriptor);
  if (status == TENON_OK) data[size] = 0, *file = (File){data, size, ALLOCATED, NULL};
  else free(data);
  return status;
}

enum { HUGE_PAGE = 1 << 21, LARGEST_PAGE = 1 << 16, DO_NOT_NEED = 4, HUGE_PAGES = 14 }; /* advice for Linux */

static void ask_for_huge_pages(void *memory, size_t bytes) {
#if defined(__linux__)
  if (bytes >= HUGE_PAGE) madvise(memory, bytes, HUGE_PAGES);
#else
  (void)memory, (void)bytes;
#endif
}

/* Huge pages: what the system reads from a disk is then kept in such, by file systems that can, and mapped at once. */
static TenonStatus map_descriptor(int descriptor, size_t size, const char *path, File *file) {
  if (size == 0) {
    *file = (File){(const uint8_t *)"", 0, BORROWED, NULL};
    return TENON_OK;
  }
  void *data = mmap(NULL, size, PROT_READ, MAP_PRIVATE, descriptor, 0);
  if (data == MAP_FAILED) return system_error("map", path);
  *file = (File){data, size, MAPPED, NULL};
  ask_for_huge_pages(data, size);
  return TENON_OK;
}

TenonStatus tn_file_map_checked(const char *path, int (*is_accepted)(int descriptor), File *file) {
  int descriptor;
  size_t size;
  TenonStatus status = open_file(path, &descriptor, &size);
  if (status != TENON_OK) return status;
  if (is_accepted != NULL && !is_accepted(descriptor))
    status = tn_fail(TENON_SYSTEM, "%s belongs to another user, or others may write it: remove it", path);
  if (status == TENON_OK) status = map_descriptor(descriptor, size, path, file);
  close(descriptor);
  return status;
}

TenonStatus tn_file_map(const char *path, File *file) { return tn_file_map_checked(path, NULL, file); }

void tn_file_release(File *file) {
  if (file->kind == ALLOCATED) free((void *)(uintptr_t)file->data);
  if (file->kind == ALIGNED) tn_aligned_release((void *)(uintptr_t)file->data);
  if (file->kind == MAPPED) munmap((void *)(uintptr_t)file->data, file->size);
  *file = (File){0};
}

/* Page by page, the system takes longer to give memory than a network to write it: large memory is asked for in huge
   pages, also a last one of which more than a sixth is used: the system gives it in the time of 85 small ones.  calloc does
   not clear again what the system just gave.  Behind the first boundary of huge pages, or of `alignment`, the word that
   says what to free is followed by the memory. */
void *tn_aligned_memory(size_t bytes, size_t alignment) {
  if (alignment < 64) alignment = 64;
  const size_t used = alignment + bytes, tail = used % HUGE_PAGE;
  const size_t huge = used - tail + (tail > HUGE_PAGE / 6 ? HUGE_PAGE : 0);
  const size_t boundary = huge > 0 && alignment < HUGE_PAGE ? HUGE_PAGE : alignment;
  uint8_t *whole = calloc(1, boundary + (used > huge ? used : huge));
  if (whole == NULL) return NULL;
  uint8_t *start = whole + (boundary - (uintptr_t)whole % boundary) % boundary;
  ask_for_huge_pages(start, huge);
  ((void **)(start + alignment))[-1] = whole;
  return start + alignment;
}

void tn_aligned_release(void *memory) {
  if (memory != NULL) free(((void **)memory)[-1]);
}

void tn_give_back(void *memory, size_t bytes) {
#if defined(__linux__)
  const size_t front = (LARGEST_PAGE - (uintptr_t)memory % LARGEST_PAGE) % LARGEST_PAGE;
  if (bytes >= front + LARGEST_PAGE) madvise((uint8_t *)memory + front, (bytes - front) & -LARGEST_PAGE, DO_NOT_NEED);
#else
  (void)memory, (void)bytes;
#endif
}

/* -------------------------------------------------------------------------------------------------------- libraries */

static int write_all(int descriptor, const uint8_t *from, size_t size) {
  while (size > 0) {
    const ssize_t count = write(descriptor, from, size);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return -1;
    from += count;
    size -= (size_t)count;
  }
  return 0;
}

/* An in-memory file: its descriptor stays open, because a reused number would give the same path, by which the loader
   recognises libraries. */
static int load_from_memory(const uint8_t *content, size_t size, Library *library) {
#if defined(__linux__) && defined(SYS_memfd_create)
  char path[48];
  const int descriptor = (int)syscall(SYS_memfd_create, "tenon", 1u /* MFD_CLOEXEC */);
  if (descriptor < 0) return 0;
  snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
  if (write_all(descriptor, content, size) == 0 && (library->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL)) != NULL) {
    library->descriptor = descriptor;
    return 1;
  }
  close(descriptor);
#else
  (void)content, (void)size, (void)library;
#endif
  return 0;
}

TenonStatus tn_library_open(const char *path, Library *library) {
  *library = (Library){dlopen(path, RTLD_LAZY | RTLD_LOCAL), -1};
  return library->handle != NULL ? TENON_OK : tn_fail(TENON_NOT_FOUND, "%s cannot be loaded: %s", path, dlerror());
}

TenonStatus tn_library_load(const uint8_t *content, size_t size, const char *origin, Library *library) {
  char path[1024];
  const char *folder = getenv("TMPDIR");
  library->descriptor = -1;
  if (load_from_memory(content, size, library)) return TENON_OK;
  if ((size_t)snprintf(path, sizeof path, "%s/tenon-XXXXXX", folder && *folder ? folder : "/tmp") >= sizeof path)
    return tn_fail(TENON_SYSTEM, "TMPDIR is too long");
  const int descriptor = mkstemp(path);
  if (descriptor < 0) return system_error("create", path);
  const int written = write_all(descriptor, content, size);
  close(descriptor);
  TenonStatus status = written == 0 ? TENON_OK : system_error("write", path);
  if (status == TENON_OK && (library->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL)) == NULL)
    status = tn_fail(TENON_SYSTEM, "%s: the library cannot be loaded: %s", origin, dlerror());
  unlink(path);
  return status;
}

void *tn_library_symbol(const Library *library, const char *name) { return dlsym(library->handle, name); }

void tn_library_unload(Library *library) {
  dlclose(library->handle);
  if (library->descriptor >= 0) close(library->descriptor);
  *library = (Library){NULL, -1};
}

/* ------------------------------------------------------------------------------------------------------------- time */

uint64_t tn_clock(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* ---------------------------------------------------------------------------------------------------------- monitors */

#if defined(__linux__)

/* A time as the kernel's call wants it: two longs, or on 32-bit machines without that call two of 64 bits. */
#if defined(SYS_futex)
enum { FUTEX = SYS_futex };
typedef long FutexTime;
#else
enum { FUTEX = SYS_futex_time64 };
typedef int64_t FutexTime;
#endif

static void futex_wait(uint32_t *word, uint32_t value, int64_t milliseconds) {
  FutexTime time[2] = {(FutexTime)(milliseconds / 1000), (FutexTime)(milliseconds % 1000) * 1000000};
  syscall(FUTEX, word, FUTEX_WAIT_PRIVATE, value, milliseconds < 0 ? NULL : time, NULL, 0);
}

static void futex_wake(uint32_t *word, int count) { syscall(FUTEX, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0); }

void tn_monitor_init(Monitor *monitor) { *monitor = (Monitor){0, 0}; }

/* 0: free, 1: locked, 2: locked, and others may wait (Drepper, Futexes are tricky, mutex 2). */
void tn_lock(Monitor *monitor) {
  uint32_t state = 0;
  if (__atomic_compare_exchange_n(&monitor->lock, &state, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) return;
  if (state != 2) state = __atomic_exchange_n(&monitor->lock, 2, __ATOMIC_ACQUIRE);
  while (state != 0) {
    futex_wait(&monitor->lock, 2, -1);
    state = __atomic_exchange_n(&monitor->lock, 2, __ATOMIC_ACQUIRE);
  }
}

void tn_unlock(Monitor *monitor) {
  if (__atomic_exchange_n(&monitor->lock, 0, __ATOMIC_RELEASE) == 2) futex_wake(&monitor->lock, 1);
}

void tn_wait(Monitor *monitor, int64_t milliseconds) {
  const uint32_t sequence = __atomic_load_n(&monitor->sequence, __ATOMIC_RELAXED);
  tn_unlock(monitor);
  futex_wait(&monitor->sequence, sequence, milliseconds);
  tn_lock(monitor);
}

void tn_wake_all(Monitor *monitor) {
  __atomic_add_fetch(&monitor->sequence, 1, __ATOMIC_RELAXED);
  futex_wake(&monitor->sequence, 1 << 30);
}

#else

void tn_monitor_init(Monitor *monitor) {
  pthread_mutex_init(&monitor->lock, NULL);
  pthread_cond_init(&monitor->condition, NULL);
}

void tn_lock(Monitor *monitor) { pthread_mutex_lock(&monitor->lock); }

void tn_unlock(Monitor *monitor) { pthread_mutex_unlock(&monitor->lock); }

void tn_wait(Monitor *monitor, int64_t milliseconds) {
  struct timespec end;
  if (milliseconds < 0) {
    pthread_cond_wait(&monitor->condition, &monitor->lock);
    return;
  }
  clock_gettime(CLOCK_REALTIME, &end);
  const int64_t nanoseconds = end.tv_nsec + milliseconds % 1000 * 1000000;
  end.tv_sec += (time_t)(milliseconds / 1000 + nanoseconds / 1000000000);
  end.tv_nsec = (long)(nanoseconds % 1000000000);
  pthread_cond_timedwait(&monitor->condition, &monitor->lock, &end);
}

void tn_wake_all(Monitor *monitor) { pthread_cond_broadcast(&monitor->condition); }

#endif

/* ----------------------------------------------------------------------------------------------------------- threads */

enum { STACK = 1 << 20 }; /* kernels take at most a quarter of it (codegen/bounds.py) */

typedef struct {
  void (*function)(void *);
  void *argument;
} Start;

static void *start(void *argument) {
  Start begun = *(Start *)argument;
  free(argument);
  begun.function(begun.argument);
  return NULL;
}

uintptr_t tn_thread_self(void) { return (uintptr_t)pthread_self(); }

long tn_process(void) { return (long)getpid(); }

TenonStatus tn_thread_start(Thread *thread, void (*function)(void *), void *argument) {
  pthread_t id;
  pthread_attr_t attributes;
  sigset_t all, before;
  Start *begun = malloc(sizeof *begun);
  if (begun == NULL || pthread_attr_init(&attributes) != 0) {
    free(begun);
    return tn_fail(TENON_OUT_OF_MEMORY, "no memory for a thread");
  }
  *begun = (Start){function, argument};
  pthread_attr_setstacksize(&attributes, STACK);
  sigfillset(&all); /* signals are for the program's own threads */
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const int status = pthread_create(&id, &attributes, start, begun);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  pthread_attr_destroy(&attributes);
  if (status != 0) {
    free(begun);
    return tn_fail(TENON_SYSTEM, "cannot start a thread: %s", strerror(status));
  }
  thread->id = (void *)(uintptr_t)id;
  return TENON_OK;
}

void tn_thread_join(Thread *thread) { pthread_join((pthread_t)(uintptr_t)thread->id, NULL); }

/* -------------------------------------------------------------------------------------------------------- processors */

#if defined(__linux__)

enum { WORD = 8 * sizeof(unsigned long) };
typedef unsigned long Mask[MAX_PROCESSORS / WORD]; /* the kernel's form */

int tn_can_pin(void) { return 1; }

int tn_own_processors(Processors *processors) {
  Mask mask = {0};
  if (syscall(SYS_sched_getaffinity, 0, sizeof mask, mask) < 0) return 0;
  for (int i = 0; i < MAX_PROCESSORS; i++) processors->present[i] = mask[i / WORD] >> i % WORD & 1;
  return 1;
}

int tn_pin(const Processors *processors) {
  Mask mask = {0};
  for (int i = 0; i < MAX_PROCESSORS; i++) mask[i / WORD] |= (unsigned long)processors->present[i] << i % WORD;
  return syscall(SYS_sched_setaffinity, 0, sizeof mask, mask) == 0;
}

static size_t read_start(const char *path, char *text, size_t size) {
  const int descriptor = open(path, O_RDONLY | O_CLOEXEC);
  size_t length = 0;
  ssize_t count = 1;
  while (descriptor >= 0 && length + 1 < size && (count = read(descriptor, text + length, size - 1 - length)) > 0)
    length += (size_t)count;
  if (descriptor >= 0) close(descriptor);
  text[length] = 0;
  return length;
}

/* With _GNU_SOURCE, newer glibcs make strtol a function that older ones do not have. */
static long leading_number(const char *text) {
  long number = 0;
  for (; *text >= '0' && *text <= '9' && number < 100000000; text++) number = 10 * number + (*text - '0');
  return number;
}

long tn_processor_speed(int processor) {
  static const char *const names[] = {"cpu_capacity", "cpufreq/cpuinfo_max_freq"};
  for (int i = 0; i < 2; i++) {
    char path[96], text[32];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/%s", processor, names[i]);
    if (read_start(path, text, sizeof text) > 0) return leading_number(text);
  }
  return 0;
}

#else

int tn_can_pin(void) { return 0; }
int tn_own_processors(Processors *processors) { return (void)processors, 0; }
int tn_pin(const Processors *processors) { return (void)processors, 0; }
long tn_processor_speed(int processor) { return (void)processor, 0; }

#endif
