/* The functions of an operating system that libtenon needs: platform_posix.c and platform_windows.c. */

#ifndef TENON_PLATFORM_H
#define TENON_PLATFORM_H

#include "tenon.h"

#if !defined(__linux__) && !defined(_WIN32)
#include <pthread.h>
#endif

/* ---- files */
typedef enum { NO_FILE, BORROWED, ALLOCATED, ALIGNED, MAPPED } FileKind;

typedef struct {
  const uint8_t *data;
  size_t size;
  FileKind kind;
  void *handle; /* of a mapping, on Windows */
} File;

int tn_is_folder(const char *path);
/* Whether a file or folder, which is no symbolic link, belongs to this process's user or root, and nobody else may
   write it; in a folder its group may, whose files are not private then, and everybody with the sticky bit. */
int tn_is_private(const char *path);
int tn_is_private_descriptor(int descriptor);
int tn_exists(const char *path);
/* Calls a function with each name in a folder, in any order. */
void tn_list_folder(const char *path, void (*visit)(void *context, const char *name), void *context);
TenonStatus tn_file_read(const char *path, File *file); /* into memory, in which a zero follows it, or as tn_file_map */
TenonStatus tn_file_map(const char *path, File *file);  /* shared with other processes; may be of 0 bytes */
/* The same for a file whose descriptor the function accepts, such as tn_is_private_descriptor. */
TenonStatus tn_file_map_checked(const char *path, int (*is_accepted)(int descriptor), File *file);
void tn_file_release(File *file);

/* Zeros; `alignment` is a power of 2.  NULL if there is no memory. */
void *tn_aligned_memory(size_t bytes, size_t alignment);
void tn_aligned_release(void *memory);
/* Gives pages of such memory back to the system, whose content is lost; they are taken again when they are used. */
void tn_give_back(void *memory, size_t bytes);
#if defined(__linux__) && SIZE_MAX > UINT32_MAX
enum { TN_GIVES_BACK = 1 };
#else
enum { TN_GIVES_BACK = 0 }; /* tn_give_back does nothing, or sums of sizes may be too large for addresses */
#endif

/* ---- shared libraries, from memory */
typedef struct {
  void *handle;
  int descriptor; /* of an in-memory file, which keeps its number taken while the library is loaded; or -1 */
} Library;

TenonStatus tn_library_open(const char *path, Library *library); /* from a file */
TenonStatus tn_library_load(const uint8_t *content, size_t size, const char *origin, Library *library);
void *tn_library_symbol(const Library *library, const char *name);
void tn_library_unload(Library *library);

/* ---- time and threads */
uint64_t tn_clock(void);              /* nanoseconds, monotonic */
uintptr_t tn_thread_self(void);       /* not 0 */
long tn_process(void);                /* changes with fork */

/* A lock with a condition. */
typedef struct {
#if defined(__linux__)
  uint32_t lock, sequence;
#elif defined(_WIN32)
  void *lock, *condition;
#else
  pthread_mutex_t lock;
  pthread_cond_t condition;
#endif
} Monitor;

void tn_monitor_init(Monitor *monitor);
void tn_lock(Monitor *monitor);
void tn_unlock(Monitor *monitor);
/* Unlocks, waits for a wake or so many milliseconds (negative: for ever), locks again; may return early. */
void tn_wait(Monitor *monitor, int64_t milliseconds);
void tn_wake_all(Monitor *monitor);

typedef struct {
  void *id;
} Thread;

TenonStatus tn_thread_start(Thread *thread, void (*function)(void *), void *argument);
void tn_thread_join(Thread *thread);

/* ---- processors */
enum { MAX_PROCESSORS = 1024 };
typedef struct {
  uint8_t present[MAX_PROCESSORS];
} Processors;

int tn_can_pin(void);
int tn_own_processors(Processors *processors);       /* of this thread; 0 if unknown */
int tn_pin(const Processors *processors);            /* this thread */
long tn_processor_speed(int processor);              /* capacity or highest clock rate; 0 if unknown */

/* ---- the compiler of models */
/* Runs a command (NULL-terminated) with `input` (at most 512 bytes, which a pipe has room for) as standard input,
   standard output closed and standard error in the file `log`; `status` is its exit status.  TENON_NOT_FOUND if there is
   no such program. */
TenonStatus tn_run_command(const char *const *command, const uint8_t *input, size_t input_bytes, const char *log,
                           int64_t milliseconds, int *status);
/* A lock on a file, which other processes wait for; -1 in `handle` if the file cannot be created. */
TenonStatus tn_lock_file(const char *path, int64_t milliseconds, intptr_t *handle);
void tn_unlock_file(intptr_t handle);
int tn_make_folders(const char *path); /* 0 or -1 */
int tn_write_file(const char *path, const void *data, size_t size, int is_private); /* 0 or -1 */
int tn_rename_file(const char *from, const char *to); /* replaces a file; 0 or -1 */
int tn_remove_file(const char *path);
int tn_remove_folder(const char *path); /* an empty one */
const char *tn_home(void); /* NULL if unknown */

#endif
