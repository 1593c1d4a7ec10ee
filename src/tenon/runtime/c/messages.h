/* Messages of executables. */

#ifndef TENON_MESSAGES_H
#define TENON_MESSAGES_H

enum { FAILURE = 2 }; /* the exit status after a message */

/* Print a line on standard error that begins with the network's name, and exit. */
void tenon_fail(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

#endif
