/* Memory for intermediate results: taken for the length of a run, by one engine at a time. */

#include "activations.h"

#include <stdlib.h>

Activations *tn_activations_new(void) {
  Activations *activations = calloc(1, sizeof *activations);
  if (activations == NULL) return NULL;
  activations->references = 1;
  tn_monitor_init(&activations->monitor);
  return activations;
}

void tn_activations_want(Activations *activations, size_t size, size_t alignment) {
  tn_lock(&activations->monitor);
  if (size > activations->wanted) activations->wanted = size;
  if (alignment > activations->alignment) activations->alignment = alignment;
  tn_unlock(&activations->monitor);
}

static void free_memory(Activations *activations) {
  if (activations->memory != activations->home) tn_aligned_release(activations->memory);
  else if (activations->home != NULL) tn_give_back(activations->home, activations->home_size);
  activations->memory = NULL;
  activations->size = 0;
}

uint8_t *tn_activations_take(Activations *activations) {
  tn_lock(&activations->monitor);
  while (activations->taken) tn_wait(&activations->monitor, -1);
  const size_t size = activations->wanted ? activations->wanted : 1, alignment = activations->alignment;
  if (activations->size < size || (uintptr_t)activations->memory % alignment != 0) free_memory(activations);
  if (activations->memory == NULL) {
    const int fits = activations->home_size >= size && (uintptr_t)activations->home % alignment == 0;
    activations->memory = fits ? activations->home : tn_aligned_memory(size, alignment);
    activations->size = fits ? activations->home_size : size;
  }
  uint8_t *memory = activations->memory;
  activations->taken = memory != NULL;
  tn_unlock(&activations->monitor);
  return memory;
}

void tn_activations_leave(Activations *activations) {
  tn_lock(&activations->monitor);
  activations->taken = 0;
  tn_wake_all(&activations->monitor);
  tn_unlock(&activations->monitor);
}

void tn_activations_settle(Activations *activations, uint8_t *home, size_t size) {
  tn_lock(&activations->monitor);
  while (activations->taken) tn_wait(&activations->monitor, -1);
  free_memory(activations);
  activations->home = home;
  activations->home_size = size;
  tn_unlock(&activations->monitor);
}

void tn_activations_drop(Activations *activations) {
  tn_lock(&activations->monitor);
  while (activations->taken) tn_wait(&activations->monitor, -1);
  free_memory(activations);
  tn_unlock(&activations->monitor);
}

void tn_activations_retain(Activations *activations) {
  __atomic_add_fetch(&activations->references, 1, __ATOMIC_RELAXED);
}

void tn_activations_release(Activations *activations) {
  if (activations == NULL || __atomic_sub_fetch(&activations->references, 1, __ATOMIC_ACQ_REL) > 0) return;
  free_memory(activations);
  free(activations);
}
