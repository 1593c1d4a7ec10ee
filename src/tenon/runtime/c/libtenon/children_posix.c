/* Linux, Android, macOS: run the compiler as a child process; lock, write and remove files of the cache. */

#define _GNU_SOURCE
#define _DARWIN_C_SOURCE
#include "errors.h"
#include "platform.h"

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

enum { NOT_STARTED = 127, PATH_ROOM = 4096 };

static void pause_briefly(void) {
  const struct timespec time = {0, 5000000};
  nanosleep(&time, NULL);
}

static int passed(uint64_t begin, int64_t milliseconds) {
  return milliseconds >= 0 && (int64_t)((tn_clock() - begin) / 1000000) >= milliseconds;
}

/* The path of a program: of a name without "/" that in PATH, of which only absolute folders count, because the working
   folder may be anybody's.  0 if there is none. */
static int find_program(const char *name, char path[PATH_ROOM]) {
  const char *folders = getenv("PATH");
  if (strchr(name, '/') != NULL) return snprintf(path, PATH_ROOM, "%s", name) < PATH_ROOM && access(path, X_OK) == 0;
  if (folders == NULL) folders = "/usr/bin:/bin";
  while (*folders) {
    const size_t length = strcspn(folders, ":");
    if (*folders == '/' && length + strlen(name) + 2 <= PATH_ROOM) {
      snprintf(path, PATH_ROOM, "%.*s/%s", (int)length, folders, name);
      if (access(path, X_OK) == 0 && !tn_is_folder(path)) return 1;
    }
    folders += length + (folders[length] != 0);
  }
  return 0;
}

/* In the child, between fork and exec: only calls that are safe there.  The number of an error goes to `report`. */
static void become(const char *path, const char *const *command, int input, int log, int report) {
  const int nothing = open("/dev/null", O_RDWR);
  sigset_t none;
  setpgid(0, 0); /* the compiler is a driver of others: they end with it */
  sigemptyset(&none);
  pthread_sigmask(SIG_SETMASK, &none, NULL);
  signal(SIGCHLD, SIG_DFL); /* a program that ignores it would take the compiler's own children from it */
  umask(umask(0077) | 0022); /* what others may write would not be loaded */
  if (input >= 0) dup2(input, 0);
  if (nothing >= 0 && input < 0) dup2(nothing, 0);
  if (nothing >= 0) dup2(nothing, 1);
  dup2(log, 2);
  execv(path, (char *const *)(uintptr_t)command);
  const int error = errno;
  if (write(report, &error, sizeof error) == (ssize_t)sizeof error) _exit(NOT_STARTED);
  _exit(NOT_STARTED);
}

static TenonStatus wait_for(pid_t child, int64_t milliseconds, int *status) {
  const uint64_t begin = tn_clock();
  for (;;) {
    const pid_t ended = waitpid(child, status, WNOHANG);
    if (ended == child) return TENON_OK;
    if (ended < 0 && errno == ECHILD) { /* it has ended, and the program ignores or collects its children's statuses */
      *status = 0;
      return TENON_OK;
    }
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

/* No other child inherits either end; `flags` may be O_NONBLOCK. */
static int make_pipe(int ends[2], int flags) {
#if defined(__linux__)
  return pipe2(ends, O_CLOEXEC | flags);
#else
  if (pipe(ends) != 0) return -1;
  for (int i = 0; i < 2; i++) fcntl(ends[i], F_SETFD, FD_CLOEXEC), fcntl(ends[i], F_SETFL, flags);
  return 0;
#endif
}

/* The end to read from of a pipe that holds the input, and whose other end is closed; -1 on an error. */
static int filled_pipe(const uint8_t *input, size_t bytes) {
  int ends[2];
  if (make_pipe(ends, 0) != 0) return -1;
  const ssize_t written = write(ends[1], input, bytes);
  close(ends[1]);
  if (written == (ssize_t)bytes) return ends[0];
  close(ends[0]);
  return -1;
}

/* A new file, whatever another user has put or linked there. */
static int new_file(const char *path, int mode) {
  unlink(path);
  return open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
}

/* The number of the error with which the program was not started, which the child that has ended reported; or 0. */
static int start_error(int report) {
  int error = 0;
  return read(report, &error, sizeof error) == (ssize_t)sizeof error ? error : 0;
}

static TenonStatus run(const char *path, const char *const *command, int input, int log, int64_t milliseconds,
                       int *result) {
  int status = 0, report[2];
  /* Other children of the program may still have its other end: reading does not wait for them. */
  if (make_pipe(report, O_NONBLOCK) != 0) return tn_fail(TENON_SYSTEM, "cannot make a pipe: %s", strerror(errno));
  const pid_t child = fork();
  if (child == 0) become(path, command, input, log, report[1]);
  const int fork_error = errno;
  close(report[1]);
  TenonStatus done = child < 0 ? tn_fail(TENON_SYSTEM, "cannot start %s: %s", path, strerror(fork_error))
                               : wait_for(child, milliseconds, &status);
  const int error = done == TENON_OK ? start_error(report[0]) : 0;
  close(report[0]);
  if (error != 0)
    done = tn_fail(error == ENOENT ? TENON_NOT_FOUND : TENON_SYSTEM, "cannot start %s: %s", path, strerror(error));
  *result = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return done;
}

TenonStatus tn_run_command(const char *const *command, const uint8_t *input, size_t input_bytes, const char *log,
                           int64_t milliseconds, int *result) {
  char path[PATH_ROOM];
  int from = -1;
  if (!find_program(command[0], path)) return tn_fail(TENON_NOT_FOUND, "there is no %s", command[0]);
  const int descriptor = new_file(log, 0600);
  if (descriptor < 0) return tn_fail(TENON_SYSTEM, "cannot write %s: %s", log, strerror(errno));
  if (input != NULL && (from = filled_pipe(input, input_bytes)) < 0) {
    close(descriptor);
    return tn_fail(TENON_SYSTEM, "cannot make a pipe: %s", strerror(errno));
  }
  const TenonStatus done = run(path, command, from, descriptor, milliseconds, result);
  close(descriptor);
  if (from >= 0) close(from);
  return done;
}

TenonStatus tn_lock_file(const char *path, int64_t milliseconds, intptr_t *handle) {
  const uint64_t begin = tn_clock();
  const int descriptor = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
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
    if (mkdir(part, 0755) != 0 && errno != EEXIST && !tn_is_folder(part)) return -1;
  }
  return tn_is_folder(path) ? 0 : -1;
}

int tn_write_file(const char *path, const void *data, size_t size, int is_private) {
  const int descriptor = new_file(path, is_private ? 0600 : 0666);
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
