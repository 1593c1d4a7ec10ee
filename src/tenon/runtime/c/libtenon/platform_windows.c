/* Windows: files, shared libraries, locks and threads.  Models are not compiled here, and threads are not pinned. */

#include "platform.h"
#include "errors.h"

#define WIN32_LEAN_AND_MEAN
#include <windows.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static TenonStatus system_error(const char *what, const char *path) {
  const DWORD number = GetLastError();
  const int missing = number == ERROR_FILE_NOT_FOUND || number == ERROR_PATH_NOT_FOUND;
  return tn_fail(missing ? TENON_NOT_FOUND : TENON_SYSTEM, "cannot %s %s: error %lu of Windows", what, path, number);
}

/* ------------------------------------------------------------------------------------------------------------ files */

/* Only models have further files, and here they are compiled before. */
void tn_list_folder(const char *path, void (*visit)(void *context, const char *name), void *context) {
  (void)path, (void)visit, (void)context;
}

int tn_exists(const char *path) { return GetFileAttributesA(path) != INVALID_FILE_ATTRIBUTES; }

int tn_is_folder(const char *path) {
  const DWORD attributes = GetFileAttributesA(path);
  return attributes != INVALID_FILE_ATTRIBUTES && (attributes & FILE_ATTRIBUTE_DIRECTORY) != 0;
}

/* Nothing is compiled here. */
int tn_is_private(const char *path) { return tn_exists(path); }
int tn_is_private_descriptor(int descriptor) { return (void)descriptor, 1; }

TenonStatus tn_file_map(const char *path, File *file) {
  LARGE_INTEGER size;
  const HANDLE from = CreateFileA(path, GENERIC_READ, FILE_SHARE_READ | FILE_SHARE_DELETE, NULL, OPEN_EXISTING, 0, NULL);
  if (from == INVALID_HANDLE_VALUE || !GetFileSizeEx(from, &size)) return system_error("open", path);
  if (size.QuadPart == 0) {
    CloseHandle(from);
    *file = (File){(const uint8_t *)"", 0, BORROWED, NULL};
    return TENON_OK;
  }
  const HANDLE mapping = CreateFileMappingA(from, NULL, PAGE_READONLY, 0, 0, NULL);
  const void *data = mapping != NULL ? MapViewOfFile(mapping, FILE_MAP_READ, 0, 0, 0) : NULL;
  CloseHandle(from);
  if (data == NULL) return system_error("map", path);
  *file = (File){data, (size_t)size.QuadPart, MAPPED, mapping};
  return TENON_OK;
}

TenonStatus tn_file_map_checked(const char *path, int (*is_accepted)(int descriptor), File *file) {
  return (void)is_accepted, tn_file_map(path, file);
}

TenonStatus tn_file_read(const char *path, File *file) { return tn_file_map(path, file); }

void tn_file_release(File *file) {
  if (file->kind == ALIGNED) tn_aligned_release((void *)(uintptr_t)file->data);
  if (file->kind == MAPPED) {
    UnmapViewOfFile(file->data);
    CloseHandle(file->handle);
  }
  *file = (File){0};
}

void *tn_aligned_memory(size_t bytes, size_t alignment) {
  return _aligned_recalloc(NULL, 1, bytes ? bytes : 1, alignment < 64 ? 64 : alignment);
}

void tn_aligned_release(void *memory) { _aligned_free(memory); }

void tn_give_back(void *memory, size_t bytes) { (void)memory, (void)bytes; }

int tn_write_file(const char *path, const void *data, size_t size, int is_private) {
  (void)is_private;
  FILE *file = fopen(path, "wb");
  if (file == NULL) return -1;
  const int written = fwrite(data, 1, size, file) == size;
  return fclose(file) == 0 && written ? 0 : -1;
}

int tn_rename_file(const char *from, const char *to) {
  return MoveFileExA(from, to, MOVEFILE_REPLACE_EXISTING | MOVEFILE_WRITE_THROUGH) ? 0 : -1;
}

int tn_remove_file(const char *path) { return DeleteFileA(path) ? 0 : -1; }

int tn_remove_folder(const char *path) { return RemoveDirectoryA(path) ? 0 : -1; }

int tn_make_folders(const char *path) { return tn_is_folder(path) || CreateDirectoryA(path, NULL) ? 0 : -1; }

const char *tn_home(void) { return getenv("LOCALAPPDATA"); }

/* -------------------------------------------------------------------------------------------------------- libraries */

/* A loaded library's file cannot be removed: Windows does so when it restarts, or the next cleaning of TEMP. */
TenonStatus tn_library_open(const char *path, Library *library) {
  *library = (Library){LoadLibraryA(path), -1};
  return library->handle != NULL ? TENON_OK : system_error("load", path);
}

TenonStatus tn_library_load(const uint8_t *content, size_t size, const char *origin, Library *library) {
  char folder[MAX_PATH + 1], path[MAX_PATH + 1];
  if (GetTempPathA(sizeof folder, folder) == 0 || GetTempFileNameA(folder, "tnn", 0, path) == 0)
    return system_error("create a file in", "TEMP");
  if (tn_write_file(path, content, size, 1) != 0) return system_error("write", path);
  library->descriptor = -1;
  library->handle = LoadLibraryA(path);
  if (library->handle == NULL) {
    const TenonStatus status = system_error("load the library of", origin);
    DeleteFileA(path);
    return status;
  }
  MoveFileExA(path, NULL, MOVEFILE_DELAY_UNTIL_REBOOT);
  return TENON_OK;
}

void *tn_library_symbol(const Library *library, const char *name) {
  return (void *)(uintptr_t)GetProcAddress(library->handle, name);
}

void tn_library_unload(Library *library) {
  FreeLibrary(library->handle);
  *library = (Library){NULL, -1};
}

/* ----------------------------------------------------------------------------------------------------- time, threads */

uint64_t tn_clock(void) {
  LARGE_INTEGER now, frequency;
  QueryPerformanceCounter(&now);
  QueryPerformanceFrequency(&frequency);
  const uint64_t ticks = (uint64_t)now.QuadPart, second = (uint64_t)frequency.QuadPart;
  return ticks / second * 1000000000u + ticks % second * 1000000000u / second;
}

uintptr_t tn_thread_self(void) { return (uintptr_t)GetCurrentThreadId(); }

long tn_process(void) { return (long)GetCurrentProcessId(); }

void tn_monitor_init(Monitor *monitor) {
  InitializeSRWLock((PSRWLOCK)&monitor->lock);
  InitializeConditionVariable((PCONDITION_VARIABLE)&monitor->condition);
}

void tn_lock(Monitor *monitor) { AcquireSRWLockExclusive((PSRWLOCK)&monitor->lock); }

void tn_unlock(Monitor *monitor) { ReleaseSRWLockExclusive((PSRWLOCK)&monitor->lock); }

void tn_wait(Monitor *monitor, int64_t milliseconds) {
  const DWORD time = milliseconds < 0 || milliseconds >= INFINITE ? INFINITE : (DWORD)milliseconds;
  SleepConditionVariableSRW((PCONDITION_VARIABLE)&monitor->condition, (PSRWLOCK)&monitor->lock, time, 0);
}

void tn_wake_all(Monitor *monitor) { WakeAllConditionVariable((PCONDITION_VARIABLE)&monitor->condition); }

typedef struct {
  void (*function)(void *);
  void *argument;
} Start;

static DWORD WINAPI start(void *argument) {
  const Start begun = *(Start *)argument;
  free(argument);
  begun.function(begun.argument);
  return 0;
}

TenonStatus tn_thread_start(Thread *thread, void (*function)(void *), void *argument) {
  Start *begun = malloc(sizeof *begun);
  if (begun == NULL) return tn_fail(TENON_OUT_OF_MEMORY, "no memory for a thread");
  *begun = (Start){function, argument};
  thread->id = CreateThread(NULL, 1 << 20, start, begun, 0, NULL);
  if (thread->id != NULL) return TENON_OK;
  free(begun);
  return system_error("start", "a thread");
}

void tn_thread_join(Thread *thread) {
  WaitForSingleObject(thread->id, INFINITE);
  CloseHandle(thread->id);
}

/* -------------------------------------------------------------------------------------------- processors, processes */

int tn_can_pin(void) { return 0; }
int tn_own_processors(Processors *processors) { return (void)processors, 0; }
int tn_pin(const Processors *processors) { return (void)processors, 0; }
long tn_processor_speed(int processor) { return (void)processor, 0; }

TenonStatus tn_run_command(const char *const *command, const uint8_t *input, size_t input_bytes, const char *log,
                           int64_t milliseconds, int *status) {
  (void)input, (void)input_bytes, (void)log, (void)milliseconds, (void)status;
  return tn_fail(TENON_UNSUPPORTED, "%s cannot be started from this library on Windows: compile the model first", command[0]);
}

TenonStatus tn_lock_file(const char *path, int64_t milliseconds, intptr_t *handle) {
  (void)path, (void)milliseconds;
  *handle = 0;
  return TENON_OK;
}

void tn_unlock_file(intptr_t handle) { (void)handle; }
