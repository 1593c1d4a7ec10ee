/* Networks on a GPU or another device: functions of a bundle's library that create, run and destroy them there. */

#ifndef TENON_QUEUES_H
#define TENON_QUEUES_H

#include "tenon.h"

enum { QUEUE_FUNCTIONS = 6 };

/* Pointers to functions alone. */
typedef struct {
  void *(*create)(const uint8_t *, const char *, int *);
  int (*run)(uint8_t *, void *);
  int (*timed_run)(uint8_t *, void *, uint64_t *);
  void (*destroy)(void *);
  const char *(*device)(void);
  const char *(*message)(void);
} QueueFunctions;


#endif
