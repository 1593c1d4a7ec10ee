/* REQUIRE(condition) in a client's main: a condition that does not hold is printed, and ends the program. */

#pragma once

#include <stdio.h>

#define REQUIRE(condition)                               \
  do {                                                   \
    if (!(condition)) {                                  \
      fprintf(stderr, "%d: %s\n", __LINE__, #condition); \
      return 1;                                          \
    }                                                    \
  } while (0)
