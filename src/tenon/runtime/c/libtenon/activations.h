/* Memory for intermediate results, which engines can share. */

#ifndef TENON_ACTIVATIONS_H
#define TENON_ACTIVATIONS_H

#include "platform.h"

typedef struct {
  int references, taken;
  uint8_t *memory; /* NULL: it is to be taken */
  uint8_t *home;   /* behind the tensors of the engine that made this, while that lives; or NULL */
  size_t home_size;
  size_t size, wanted, alignment;
  Monitor monitor;
} Activations;

Activations *tn_activations_new(void);
void tn_activations_want(Activations *activations, size_t size, size_t alignment);
uint8_t *tn_activations_take(Activations *activations); /* waits; NULL if there is no memory */
void tn_activations_leave(Activations *activations);
void tn_activations_settle(Activations *activations, uint8_t *home, size_t size); /* NULL: the home ends */
void tn_activations_drop(Activations *activations); /* the memory; it is taken again when needed */
void tn_activations_retain(Activations *activations);
void tn_activations_release(Activations *activations);

#endif
