/* A condition that does not hold is printed: REQUIRE ends a client's main, ENSURE the program, from any function. */

#pragma once

#include <stdio.h>
#include <stdlib.h>

#define REQUIRE(condition)                               \
  do {                                                   \
    if (!(condition)) {                                  \
      fprintf(stderr, "%d: %s\n", __LINE__, #condition); \
      return 1;                                          \
    }                                                    \
  } while (0)

#define ENSURE(condition)                                \
  do {                                                   \
    if (!(condition)) {                                  \
      fprintf(stderr, "%d: %s\n", __LINE__, #condition); \
      exit(1);                                           \
    }                                                    \
  } while (0)
