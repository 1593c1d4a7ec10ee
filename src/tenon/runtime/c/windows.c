/* The functions of POSIX that programs of this folder use, for Windows. */

#include "windows.h"

/* Declared here and not by the header of Windows, whose macros would get in the way. */
__declspec(dllimport) int __stdcall QueryPerformanceCounter(long long *ticks);
__declspec(dllimport) int __stdcall QueryPerformanceFrequency(long long *ticks);

double tenon_milliseconds(void) {
  long long ticks = 0, frequency = 1;
  QueryPerformanceCounter(&ticks);
  QueryPerformanceFrequency(&frequency);
  return (double)ticks * 1e3 / (double)frequency;
}
