/* Messages to the program's log. */

#include "messages.h"
#include "errors.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static log_print_t log_output;
static enum log_level log_level = LOG_ERR;

static void print(const char *text) {
  if (log_output != NULL) log_output(text);
  else fputs(text, stderr);
}

void tg_log(enum log_level level, const char *format, ...) {
  char text[256]; /* longer messages are cut, as in Tengine */
  va_list arguments;
  if (level > log_level) return;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  print(text);
}

int tg_error(const char *format, ...) {
  char text[2304] = "Tengine: ";
  const size_t begin = strlen(text);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text + begin, sizeof text - begin - 1, format, arguments);
  va_end(arguments);
  strcat(text, "\n");
  if (log_level >= LOG_ERR) print(text);
  return -1;
}

/* Messages about the handles. */
TenonStatus tn_fail(TenonStatus status, const char *format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  tg_error("%s", text);
  return status;
}

void set_log_level(enum log_level level) { log_level = level; }

void set_log_output(log_print_t output) { log_output = output; }
