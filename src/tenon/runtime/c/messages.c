/* Messages of executables. */

#define __USE_MINGW_ANSI_STDIO 1 /* %zu */
#include "messages.h"
#include "network.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

void tenon_fail(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fprintf(stderr, "%s: ", tenon_name);
  vfprintf(stderr, format, arguments);
  fputc('\n', stderr);
  va_end(arguments);
  exit(FAILURE);
}
