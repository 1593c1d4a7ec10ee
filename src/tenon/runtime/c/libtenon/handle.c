/* Handles that stay recognisable after their object has ended.

   A handle is the number of a slot and the count of the slot's uses, packed into a pointer that is never followed, so a
   handle of an earlier use, or any other pointer, is not taken for a living object. */

#include "handle.h"
#include "errors.h"

#include <stdlib.h>
#include <string.h>

enum { INDEX_BITS = 16, MOST = 1 << INDEX_BITS };

typedef struct {
  void *object;
  const HandleKind *kind;
  uint32_t use;
} Slot;

static Slot *slots; /* grows by doubling; never released, so that old handles stay recognisable */
static uint32_t count, busy;

static void take(void) {
  while (__atomic_exchange_n(&busy, 1, __ATOMIC_ACQUIRE)) {
  }
}

static void leave(void) { __atomic_store_n(&busy, 0, __ATOMIC_RELEASE); }

static uint32_t free_slot(void) {
  uint32_t i = 0;
  while (i < count && slots[i].object != NULL) i++;
  if (i < count || count == MOST) return i;
  const uint32_t more = count ? 2 * count : 16;
  Slot *grown = realloc(slots, more * sizeof *slots);
  if (grown == NULL) return MOST;
  memset(grown + count, 0, (more - count) * sizeof *slots);
  slots = grown;
  count = more;
  return i;
}

void *tn_handle_new(const HandleKind *kind, void *object) {
  void *handle = NULL;
  take();
  const uint32_t i = free_slot();
  if (i < count) {
    slots[i].object = object;
    slots[i].kind = kind;
    slots[i].use = (slots[i].use + 1) & (UINTPTR_MAX >> INDEX_BITS & UINT32_MAX);
    if (slots[i].use == 0) slots[i].use = 1;
    handle = (void *)((uintptr_t)slots[i].use << INDEX_BITS | i);
  }
  leave();
  return handle;
}

void *tn_handle_object(const HandleKind *kind, const void *handle) {
  const uintptr_t number = (uintptr_t)handle;
  const uint32_t i = number & (MOST - 1);
  void *object = NULL;
  take();
  if (i < count && slots[i].kind == kind && slots[i].use == number >> INDEX_BITS) object = slots[i].object;
  leave();
  if (object == NULL) {
    if (handle == NULL)
      tn_fail(TENON_INVALID_HANDLE, "the %s is NULL", kind->name);
    else
      tn_fail(TENON_INVALID_HANDLE, "the handle is not of this kind (%s), or the %s was %s", kind->name, kind->name,
              kind->ended);
  }
  return object;
}

void tn_handle_end(const void *handle) {
  const uint32_t i = (uintptr_t)handle & (MOST - 1);
  take();
  if (i < count) slots[i].object = NULL;
  leave();
}
