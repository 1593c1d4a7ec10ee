/* Declarations that the files of the command mace_run share. */

#ifndef TENON_MACE_RUN_H
#define TENON_MACE_RUN_H

#include "core.h"

/* A flag of the command, as gflags has them: --name=value, --name value, --name and --noname. */
typedef enum { TEXT_FLAG, INTEGER_FLAG, BOOL_FLAG } FlagKind;

typedef struct {
  const char *name;
  FlagKind kind;
  const char *text; /* the default, then what was given */
  const char *about;
  long number; /* of integers and bools */
} Flag;

extern Flag mr_flags[];

/* 0; 1 after --help; -1 after an error that was printed. */
int mr_parse_flags(int count, char **words);
const char *mr_text(const char *name);
long mr_number(const char *name);

/* Writes the network's name for a file: what is no letter or digit becomes _. */
void mr_file_name(char *path, size_t size, const char *prefix, const char *separator, const char *name,
                  const char *end);

/* Times of kernel calls over several runs, printed as tables. */
typedef struct {
  size_t count, rounds;
  const MaceCoreStep *steps; /* of the last run */
  double *sums, *firsts;     /* microseconds */
} Statistics;

int mr_add_times(Statistics *statistics, const MaceCoreStep *steps, size_t count);
void mr_print_times(const Statistics *statistics);

/* A message as MACE logs it, from the level of MACE_CPP_MIN_LOG_LEVEL; 'F' is printed always. */
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
void mr_log(char level, const char *format, ...);

#endif
