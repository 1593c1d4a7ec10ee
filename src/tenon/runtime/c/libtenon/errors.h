/* The text of each thread's last error. */

#ifndef TENON_ERRORS_H
#define TENON_ERRORS_H

#include "tenon.h"

enum { ERROR_TEXT = 2048 };
char *tn_error_text(void); /* of this thread; NULL if there is no memory for one */

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
TenonStatus tn_fail(TenonStatus status, const char *format, ...);

/* Copies a struct of options that begins with its size, of an older or a newer program; zeros for NULL. */
TenonStatus tn_options(const void *given, void *options, size_t size, const char *initialiser);

#endif
