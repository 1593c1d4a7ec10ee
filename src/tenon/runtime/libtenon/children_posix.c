/* Linux, Android, macOS: run the compiler as a child process; lock, write and remove files of the cache. */

#define _GNU_SOURCE
#define _DARWIN_C_SOURCE
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { NOT_STARTED = 127 };

static void pause_briefly(void) {
  const struct timespec time = {0, 5000000};
  nanosleep(&time, NULL);
}

static int passed(uint64_t begin, int64_t milliseconds) {
  return milliseconds >= 0 && (int64_t)((tn_clock() - begin) / 1000000) >= milliseconds;
}

/* In the child, between fork and exec: only calls that are safe there. */
static void become(const char *const *command, int input, int log) {
  const int nothing = open("/dev/null", O_RDWR);
  sigset_t none;
  setpgid(0, 0); /* the compiler is a driver of others: they end with it */
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, NULL);
  if (input >= 0) dup2(input, 0);
  if (nothing >= 0 && input < 0) dup2(nothing, 0);
  if (nothing >= 0) dup2(nothing, 1);
  dup2(log, 2);
  execvp(command[0], (char *const *)(uintptr_t)command);
  _exit(NOT_STARTED);
}

static TenonStatus wait_for(pid_t child, int64_t milliseconds, int *status) {
  const uint64_t begin = tn_clock();
  for (;;) {
    const pid_t ended = waitpid(child, status, WNOHANG);
    if (ended == child) return TENON_OK;
    if (ended < 0 && errno != EINTR)
      return tn_fail(TENON_SYSTEM, "cannot wait for the compiler: %s", strerror(errno));
    if (passed(begin, milliseconds)) break;
    pause_briefly();
  }
  kill(-child, SIGKILL);
  kill(child, SIGKILL);
  while (waitpid(child, status, 0) < 0 && errno == EINTR) {
  }
  return TENON_TIMEOUT;
}

/* The end to read from of a pipe that holds the input, and whose other end is closed; -1 on an error.  No other child
   inherits either end. */
static int filled_pipe(const uint8_t *input, size_t bytes) {
  int ends[2];
#if defined(__linux__)
  if (pipe2(ends, O_CLOEXEC) != 0) return -1;
#else
  if (pipe(ends) != 0) return -1;
  fcntl(ends[0], F_SETFD, FD_CLOEXEC), fcntl(ends[1], F_SETFD, FD_CLOEXEC);
#endif
  const ssize_t written = write(ends[1], input, bytes);
  close(ends[1]);
  if (written == (ssize_t)bytes) return ends[0];
  close(ends[0]);
  return -1;
}

TenonStatus tn_run_command(const char *const *command, const uint8_t *input, size_t input_bytes, const char *log,
                           int64_t milliseconds, int *result) {
  int status = 0, from = -1;
  const int descriptor = open(log, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (descriptor < 0) return tn_fail(TENON_SYSTEM, "cannot write %s: %s", log, strerror(errno));
  if (input != NULL && (from = filled_pipe(input, input_bytes)) < 0) {
    close(descriptor);
    return tn_fail(TENON_SYSTEM, "cannot make a pipe: %s", strerror(errno));
  }
  const pid_t child = fork();
  if (child == 0) become(command, from, descriptor);
  close(descriptor);
  if (from >= 0) close(from);
  if (child < 0) return tn_fail(TENON_SYSTEM, "cannot start %s: %s", command[0], strerror(errno));
  const TenonStatus waited = wait_for(child, milliseconds, &status);
  if (waited != TENON_OK) return waited;
  *result = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return *result == NOT_STARTED ? TENON_NOT_FOUND : TENON_OK;
}

TenonStatus tn_lock_file(const char *path, int64_t milliseconds, intptr_t *handle) {
  const uint64_t begin = tn_clock();
  const int descriptor = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (descriptor < 0) return tn_fail(TENON_SYSTEM, "cannot create %s: %s: set TENON_CACHE to a folder that can be written",
                                     path, strerror(errno));
  while (flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) break; /* a file system without locks: compile twice, at worst */
    if (passed(begin, milliseconds)) {
      close(descriptor);
      return tn_fail(TENON_TIMEOUT, "another program still compiles this model: it holds %s", path);
    }
    pause_briefly();
  }
  *handle = descriptor;
  return TENON_OK;
}

void tn_unlock_file(intptr_t handle) { close((int)handle); }

int tn_make_folders(const char *path) {
  char part[4096];
  const size_t length = strlen(path);
  if (length == 0 || length >= sizeof part) return -1;
  for (size_t i = 1; i <= length; i++) {
    if (path[i] != '/' && path[i] != 0) continue;
    memcpy(part, path, i);
    part[i] = 0;
    if (mkdir(part, 0777) != 0 && errno != EEXIST && !tn_is_folder(part)) return -1;
  }
  return tn_is_folder(path) ? 0 : -1;
}

int tn_write_file(const char *path, const void *data, size_t size, int is_private) {
  const int how = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW;
  const int descriptor = open(path, how, is_private ? 0600 : 0666);
  const uint8_t *from = data;
  if (descriptor < 0) return -1;
  while (size > 0) {
    const ssize_t count = write(descriptor, from, size);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    from += count;
    size -= (size_t)count;
  }
  const int stored = size == 0 && fsync(descriptor) == 0;
  return close(descriptor) == 0 && stored ? 0 : -1;
}

int tn_rename_file(const char *from, const char *to) { return rename(from, to); }

int tn_remove_file(const char *path) { return unlink(path); }

int tn_remove_folder(const char *path) { return rmdir(path); }

const char *tn_home(void) { return getenv("HOME"); }
