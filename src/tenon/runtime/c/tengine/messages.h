/* Messages to the program's log. */

#ifndef TENON_TENGINE_MESSAGES_H
#define TENON_TENGINE_MESSAGES_H

#include "tengine/c_api.h"

/* Prints "Tengine: " and a line, and returns -1. */
#if defined(__GNUC__)
__attribute__((format(printf, 1, 2)))
#endif
int tg_error(const char *format, ...);

/* `level` as in set_log_level. */
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
void tg_log(enum log_level level, const char *format, ...);

#endif
