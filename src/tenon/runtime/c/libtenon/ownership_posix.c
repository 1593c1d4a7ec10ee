/* Linux, Android, macOS: who may change a file.  The kernel's own structure, as those of C libraries differ in size. */

#define _GNU_SOURCE
#define _DARWIN_C_SOURCE
#if defined(__linux__)
#define stat kernel_stat
#define stat64 kernel_stat64
#include <asm/stat.h>
#undef stat
#undef stat64
#endif

#include "platform.h"

#include <fcntl.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/syscall.h>
#else
#include <sys/stat.h>
#endif

enum { FILE_KIND = 0170000, FOLDER = 0040000, PLAIN_FILE = 0100000, STICKY = 01000, BY_GROUP = 0020, BY_ALL = 0002 };

typedef struct {
  unsigned mode, owner;
} Ownership;

#if !defined(__linux__)
static int read_ownership(int descriptor, Ownership *result) {
  struct stat status;
  if (fstat(descriptor, &status) != 0) return 0;
  *result = (Ownership){(unsigned)status.st_mode, (unsigned)status.st_uid};
  return 1;
}
#elif defined(SYS_fstat64)
static int read_ownership(int descriptor, Ownership *result) {
  struct kernel_stat64 status;
  if (syscall(SYS_fstat64, descriptor, &status) != 0) return 0;
  *result = (Ownership){(unsigned)status.st_mode, (unsigned)status.st_uid};
  return 1;
}
#elif defined(SYS_fstat)
static int read_ownership(int descriptor, Ownership *result) {
  struct kernel_stat status;
  if (syscall(SYS_fstat, descriptor, &status) != 0) return 0;
  *result = (Ownership){(unsigned)status.st_mode, (unsigned)status.st_uid};
  return 1;
}
#else
#include <linux/stat.h>

static int read_ownership(int descriptor, Ownership *result) {
  struct statx status;
  enum { EMPTY_PATH = 0x1000 };
  if (syscall(SYS_statx, descriptor, "", EMPTY_PATH, STATX_BASIC_STATS, &status) != 0) return 0;
  *result = (Ownership){status.stx_mode, status.stx_uid};
  return 1;
}
#endif

int tn_is_private_descriptor(int descriptor) {
  Ownership ownership;
  if (!read_ownership(descriptor, &ownership)) return 0;
  const unsigned kind = ownership.mode & FILE_KIND;
  if (kind != FOLDER && kind != PLAIN_FILE) return 0;
  if (ownership.owner != 0 && ownership.owner != (unsigned)geteuid()) return 0;
  if (kind == FOLDER) return (ownership.mode & BY_ALL) == 0 || (ownership.mode & STICKY) != 0;
  return (ownership.mode & (BY_GROUP | BY_ALL)) == 0;
}

int tn_is_private(const char *path) {
  const int descriptor = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (descriptor < 0) return 0;
  const int result = tn_is_private_descriptor(descriptor);
  close(descriptor);
  return result;
}
