/* Bundles that are linked into the program. */

#include "bundle.h"
#include "errors.h"

#include <stddef.h>
#include <string.h>

static TenonStatus attach_steps(Bundle *bundle, const TenonLinked *linked) {
  Description *about = &bundle->about;
  const size_t timed = (size_t)about->timed_calls;
  about->timed_calls = 0;
  if (linked->profile == NULL || linked->profile_next == NULL || linked->steps == NULL || timed == 0) return TENON_OK;
  if (linked->step_count != timed)
    return tn_fail(TENON_WRONG_SIZE, "%s: there are %zu steps and the code has %zu", linked->name, linked->step_count, timed);
  about->steps = tn_pool_take(&bundle->pool, timed * sizeof *about->steps);
  if (about->steps == NULL) return tn_fail(TENON_OUT_OF_MEMORY, "%s: no memory", linked->name);
  memcpy(about->steps, linked->steps, timed * sizeof *about->steps);
  about->timed_calls = about->step_count = (int)timed;
  bundle->profile = linked->profile;
  bundle->profile_next = linked->profile_next;
  return TENON_OK;
}

static TenonStatus attach(Bundle *bundle, const TenonLinked *linked) {
  Description *about = &bundle->about;
  TenonStatus status = tn_read_layout(&bundle->pool, linked->layout, linked->layout_bytes, linked->name, about);
  if (status != TENON_OK) return status;
  if (about->constant != linked->weights_bytes)
    return tn_fail(TENON_WRONG_SIZE, "%s: the weights have %zu bytes and the network reads %llu", linked->name,
                   linked->weights_bytes, (unsigned long long)about->constant);
  if ((uintptr_t)linked->weights % WEIGHTS_ALIGNMENT != 0)
    return tn_fail(TENON_INVALID_ARGUMENT, "%s: the weights are not aligned to %d bytes", linked->name, WEIGHTS_ALIGNMENT);
  const size_t count = (size_t)about->binding_count;
  about->name = tn_pool_text(&bundle->pool, linked->name, strlen(linked->name));
  about->target = "linked";
  if (linked->phase == NULL || linked->next == NULL) about->threads = 1;
  bundle->weights = linked->weights;
  bundle->run = tn_pool_take(&bundle->pool, count * sizeof *bundle->run);
  bundle->phase = tn_pool_take(&bundle->pool, count * sizeof *bundle->phase);
  bundle->next = tn_pool_take(&bundle->pool, count * sizeof *bundle->next);
  bundle->reset = tn_pool_take(&bundle->pool, count * sizeof *bundle->reset);
  if (about->name == NULL || bundle->run == NULL || bundle->phase == NULL || bundle->next == NULL || bundle->reset == NULL)
    return tn_fail(TENON_OUT_OF_MEMORY, "%s: no memory", linked->name);
  for (size_t i = 0; i < count; i++) {
    bundle->run[i] = linked->run[i];
    bundle->phase[i] = about->threads > 1 ? linked->phase[i] : NULL;
    bundle->next[i] = about->threads > 1 ? linked->next[i] : NULL;
    bundle->reset[i] = linked->reset != NULL ? linked->reset[i] : NULL;
  }
  status = attach_steps(bundle, linked);
  return status == TENON_OK ? tn_attach_devices(bundle, 0) : status;
}

TenonStatus tenon_bundle_from_program(const TenonLinked *given, TenonBundle **result) {
  TenonLinked linked;
  if (given == NULL || result == NULL || given->struct_size < offsetof(TenonLinked, profile))
    return tn_fail(TENON_INVALID_ARGUMENT, "tenon_bundle_from_program: an argument is NULL, or struct_size is not set");
  const TenonStatus status = tn_options(given, &linked, sizeof linked, "sizeof(TenonLinked)");
  if (status != TENON_OK) return status;
  if (linked.name == NULL || linked.layout == NULL || linked.run == NULL ||
      (linked.weights == NULL && linked.weights_bytes > 0))
    return tn_fail(TENON_INVALID_ARGUMENT, "tenon_bundle_from_program: name, layout, run or weights is NULL");
  Bundle *bundle = tn_bundle_new();
  return bundle != NULL ? tn_bundle_give(bundle, attach(bundle, &linked), result) : TENON_OUT_OF_MEMORY;
}
