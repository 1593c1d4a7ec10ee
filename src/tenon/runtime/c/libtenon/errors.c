/* Status names, the text of the last error of each thread, and options from older and newer programs. */

#include "errors.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

TenonStatus tn_fail(TenonStatus status, const char *format, ...) {
  char *text = tn_error_text();
  if (text == NULL) return status;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, ERROR_TEXT, format, arguments);
  va_end(arguments);
  return status;
}

const char *tenon_last_error(void) {
  const char *text = tn_error_text();
  return text != NULL ? text : "out of memory";
}

const char *tenon_version(void) { return TENON_VERSION; }

uint32_t tenon_abi_version(void) { return TENON_ABI_VERSION; }

const char *tenon_status_name(TenonStatus status) {
  static const char *const names[] = {
      "TENON_OK",          "TENON_INVALID_HANDLE", "TENON_INVALID_ARGUMENT", "TENON_NOT_FOUND",
      "TENON_WRONG_SIZE",  "TENON_DAMAGED",        "TENON_WRONG_MACHINE",    "TENON_OUT_OF_MEMORY",
      "TENON_SYSTEM",      "TENON_BUSY",           "TENON_WRONG_STATE",      "TENON_UNSUPPORTED",
      "TENON_NO_COMPILER", "TENON_COMPILE_FAILED", "TENON_TIMEOUT",          "TENON_RUN_FAILED",
      "TENON_WRONG_KEY",   "TENON_NOT_SIGNED",
  };
  return (unsigned)status < sizeof names / sizeof *names ? names[status] : "unknown status";
}

TenonStatus tn_options(const void *given, void *options, size_t size, const char *initialiser) {
  size_t known = 0; /* bytes, the first member of every struct of options */
  memset(options, 0, size);
  if (given == NULL) return TENON_OK;
  memcpy(&known, given, sizeof known);
  if (known < sizeof known || known > 4096)
    return tn_fail(TENON_INVALID_ARGUMENT, "options.struct_size is %zu: begin with %s", known, initialiser);
  memcpy(options, given, known < size ? known : size);
  return TENON_OK;
}
