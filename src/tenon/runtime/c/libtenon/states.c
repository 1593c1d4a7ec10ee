/* States: inputs that hold what the run before left in an output, which is at the same place. */

#include "engine.h"

#include <string.h>

void tn_reset(Engine *engine) {
  const Binding *binding = tn_engine_binding(engine);
  ResetFunction *reset = engine->bundle->reset[engine->binding];
  if (reset != NULL) {
    reset(engine->tensors);
    return;
  }
  for (int i = 0; i < binding->input_count; i++) {
    const Port *port = &binding->inputs[i];
    if (port->tensor.is_state) memset(engine->tensors + port->offset, 0, (size_t)port->tensor.bytes);
  }
}

int tn_same_states(const Binding *a, const Binding *b) {
  for (int i = 0; i < a->input_count; i++) {
    const Port *s = &a->inputs[i], *t = &b->inputs[i];
    if (!s->tensor.is_state && !t->tensor.is_state) continue;
    if (s->tensor.is_state != t->tensor.is_state || s->offset != t->offset || s->tensor.bytes != t->tensor.bytes) return 0;
    if (memcmp(s->tensor.shape, t->tensor.shape, sizeof s->tensor.shape) != 0) return 0;
  }
  return 1;
}

TenonStatus tenon_engine_reset(TenonEngine *handle) {
  Engine *engine;
  const TenonStatus status = tn_engine_take(handle, &engine);
  if (status != TENON_OK) return status;
  tn_reset(engine);
  tn_engine_leave(engine);
  return TENON_OK;
}
