/* The functions of POSIX that programs of this folder use, for Windows. */

#ifndef TENON_WINDOWS_H
#define TENON_WINDOWS_H

#include <fcntl.h>
#include <io.h>
#include <process.h>
#include <stdio.h>
#include <stdlib.h>

/* Declared here and not by the header of Windows, whose macros would get in the way. */
__declspec(dllimport) int __stdcall MoveFileExA(const char *from, const char *to, unsigned long flags);

typedef int sigset_of_windows;
#define sigset_t sigset_of_windows
#define sigfillset(set) ((void)(set))
#define sigprocmask(how, set, before) ((void)(set), (void)(before))
#define realpath(path, room) _fullpath(room, path, 0)
#define fchmod(file, mode) ((void)0)
#define rename(from, to) (MoveFileExA(from, to, 1 /* replaces a file */) ? 0 : -1)

double tenon_milliseconds(void); /* of a clock that only goes forward */

#endif
