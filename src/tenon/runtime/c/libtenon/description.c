/* Inputs, outputs and sizes of a network, from JSON, and whether they make sense. */

#include "description.h"
#include "errors.h"

#include <string.h>

static const struct {
  char name[5];
  uint8_t type, bytes;
} types[] = {
    {"f32", TENON_F32, 4},  {"f64", TENON_F64, 8},  {"f16", TENON_F16, 2},  {"bf16", TENON_BF16, 2}, {"i8", TENON_I8, 1},
    {"u8", TENON_U8, 1},    {"i16", TENON_I16, 2},  {"u16", TENON_U16, 2},  {"i32", TENON_I32, 4},   {"u32", TENON_U32, 4},
    {"i64", TENON_I64, 8},  {"u64", TENON_U64, 8},  {"bool", TENON_BOOL, 1},
};

/* 1 for the types without a constant: they are all stored in a byte. */
static uint64_t set_type(TenonTensor *tensor) {
  for (size_t i = 0; i < sizeof types / sizeof *types; i++)
    if (strcmp(tensor->type_name, types[i].name) == 0) {
      tensor->type = (TenonType)types[i].type;
      return types[i].bytes;
    }
  tensor->type = TENON_OTHER_TYPE;
  return 1;
}

static int is_size(const JsonValue *value) {
  return value != NULL && value->kind == JSON_NUMBER && value->is_integer && value->integer >= 0;
}

static int is_text(const JsonValue *value) {
  return value != NULL && value->kind == JSON_STRING && strlen(value->text) == value->count;
}

static int read_shape(const JsonValue *shape, TenonTensor *tensor) {
  if (shape == NULL || shape->kind != JSON_ARRAY || shape->count > TENON_MAX_RANK) return 0;
  tensor->rank = (int32_t)shape->count;
  int64_t *to = tensor->shape;
  for (const JsonValue *extent = shape->first; extent != NULL; extent = extent->next) {
    if (!is_size(extent)) return 0;
    *to++ = extent->integer;
  }
  return 1;
}

/* Only the axes: the names are resolved by tn_find_extents when all inputs and outputs are known. */
static int read_extents(const JsonValue *extents, Port *port) {
  for (int i = 0; i < TENON_MAX_RANK; i++) port->extents[i] = -1;
  if (extents == NULL || extents->kind != JSON_ARRAY) return 0;
  for (const JsonValue *extent = extents->first; extent != NULL; extent = extent->next) {
    if (extent->kind != JSON_ARRAY || extent->count != 2) return 0;
    if (!is_size(extent->first) || extent->first->integer >= port->tensor.rank || !is_text(extent->first->next)) return 0;
    port->tensor.dynamic_axes |= 1 << extent->first->integer;
  }
  return 1;
}

/* An i64 of rank 0, whose number this is; else -1. */
static int find_extent(const Port *ports, int count, const char *name) {
  for (int i = 0; i < count; i++)
    if (strcmp(ports[i].tensor.name, name) == 0)
      return ports[i].tensor.type == TENON_I64 && ports[i].tensor.bytes == sizeof(int64_t) ? i : -1;
  return -1;
}

int tn_find_extents(const Binding *binding, const JsonValue *extents, Port *port) {
  for (const JsonValue *extent = extents->first; extent != NULL; extent = extent->next) {
    const char *name = extent->first->next->text;
    int number = find_extent(binding->inputs, binding->input_count, name);
    if (number < 0 && (number = find_extent(binding->outputs, binding->output_count, name)) >= 0)
      number += NUMBER_OF_OUTPUTS;
    if (number < 0) return 0;
    port->extents[extent->first->integer] = number;
  }
  return 1;
}

static int read_range(const JsonValue *size, TenonTensor *tensor) {
  if (size == NULL || size->kind == JSON_NULL) return 1;
  if (size->kind != JSON_OBJECT) return 0;
  const JsonValue *least = tn_json_get(size, "least"), *most = tn_json_get(size, "most"), *step = tn_json_get(size, "step");
  if (!is_size(least) || !is_size(most) || !is_size(step) || least->integer > most->integer || step->integer < 1) return 0;
  tensor->is_size = 1;
  tensor->least = least->integer;
  tensor->most = most->integer;
  tensor->step = step->integer;
  return tensor->type == TENON_I64 && tensor->bytes == sizeof(int64_t);
}

static int read_quantisation(const JsonValue *scale, const JsonValue *zero, TenonTensor *tensor) {
  if (scale == NULL || scale->kind == JSON_NULL) return 1;
  if (scale->kind != JSON_NUMBER || zero == NULL || zero->kind != JSON_NUMBER || !zero->is_integer) return 0;
  if (zero->integer < INT32_MIN || zero->integer > INT32_MAX) return 0;
  tensor->quantised = 1;
  tensor->scale = scale->number;
  tensor->zero_point = (int32_t)zero->integer;
  return 1;
}

int tn_read_port(const JsonValue *const fields[PORT_FIELDS], Port *port) {
  TenonTensor *tensor = &port->tensor;
  if (!is_text(fields[0]) || !is_text(fields[1]) || !is_size(fields[3]) || !is_size(fields[4])) return 0;
  tensor->name = fields[0]->text;
  tensor->type_name = fields[1]->text;
  port->offset = (uint64_t)fields[3]->integer;
  tensor->bytes = (uint64_t)fields[4]->integer;
  tensor->string = fields[7] != NULL && fields[7]->kind == JSON_TRUE;
  if (!read_shape(fields[2], tensor) || !read_extents(fields[PORT_EXTENTS], port)) return 0;
  if (!read_quantisation(fields[8], fields[9], tensor)) return 0;
  uint64_t bytes = set_type(tensor);
  if (!read_range(fields[6], tensor)) return 0;
  for (int i = 0; i < tensor->rank; i++) {
    const uint64_t extent = (uint64_t)tensor->shape[i];
    if (extent != 0 && bytes > UINT64_MAX / extent) return 0;
    bytes *= extent;
  }
  return bytes == tensor->bytes;
}

static const char *check_ports(const Port *ports, int count, const Binding *binding) {
  for (int i = 0; i < count; i++) {
    const Port *port = &ports[i];
    if (port->offset > binding->mutable_bytes || port->tensor.bytes > binding->mutable_bytes - port->offset)
      return "an input or output lies outside of its memory";
  }
  return NULL;
}

static int is_identifier(const char *text) {
  size_t i = 0;
  while ((text[i] >= 'a' && text[i] <= 'z') || (text[i] >= 'A' && text[i] <= 'Z') || text[i] == '_' ||
         (i > 0 && text[i] >= '0' && text[i] <= '9'))
    i++;
  return i > 0 && text[i] == 0;
}

/* An input and an output at one place are a state. */
static void find_states(Binding *binding) {
  for (int i = 0; i < binding->input_count; i++)
    for (int k = 0; k < binding->output_count; k++) {
      Port *before = &binding->inputs[i], *after = &binding->outputs[k];
      if (before->tensor.bytes > 0 && after->tensor.bytes > 0 && before->offset == after->offset)
        before->tensor.is_state = after->tensor.is_state = 1;
    }
}

const char *tn_check_description(Description *description) {
  const uint64_t alignment = description->alignment, most = (uint64_t)1 << (sizeof(size_t) == 8 ? 46 : 31);
  if (alignment == 0 || alignment > 4096 || (alignment & (alignment - 1)) != 0) return "its alignment is no power of 2";
  if (description->constant > most || description->mutable_bytes > most || description->activations > most)
    return "its memory is larger than this machine can address";
  if (description->threads < 1 || description->binding_count < 1) return "it has no binding";
  const Binding *first = description->bindings;
  for (int i = 0; i < description->binding_count; i++) {
    const Binding *binding = &first[i];
    find_states(&description->bindings[i]);
    if (!is_identifier(binding->entry)) return "it has no entry point";
    if (binding->mutable_bytes > description->mutable_bytes || binding->activations > description->activations)
      return "a binding needs more memory than the network";
    if (binding->input_count != first->input_count || binding->output_count != first->output_count)
      return "its bindings have different inputs or outputs";
    const char *why = check_ports(binding->inputs, binding->input_count, binding);
    if (why == NULL) why = check_ports(binding->outputs, binding->output_count, binding);
    if (why != NULL) return why;
  }
  return NULL;
}

static int same_ports(const Port *a, const Port *b, int count) {
  for (int i = 0; i < count; i++) {
    const TenonTensor *s = &a[i].tensor, *t = &b[i].tensor;
    if (strcmp(s->name, t->name) != 0 || strcmp(s->type_name, t->type_name) != 0 || s->rank != t->rank) return 0;
    if (memcmp(s->shape, t->shape, sizeof s->shape) != 0 || s->bytes != t->bytes || a[i].offset != b[i].offset) return 0;
    if (s->string != t->string || memcmp(a[i].extents, b[i].extents, sizeof a->extents) != 0) return 0;
    if (s->is_size != t->is_size || s->least != t->least || s->most != t->most || s->step != t->step) return 0;
  }
  return 1;
}

int tn_same_layout(const Description *a, const Description *b) {
  if (a->constant != b->constant || a->mutable_bytes != b->mutable_bytes || a->activations != b->activations) return 0;
  if (a->alignment != b->alignment || a->threads != b->threads || a->binding_count != b->binding_count) return 0;
  for (int i = 0; i < a->binding_count; i++) {
    const Binding *s = &a->bindings[i], *t = &b->bindings[i];
    if (strcmp(s->entry, t->entry) != 0 || s->mutable_bytes != t->mutable_bytes) return 0;
    if (s->activations != t->activations || s->input_count != t->input_count || s->output_count != t->output_count)
      return 0;
    if (!same_ports(s->inputs, t->inputs, s->input_count) || !same_ports(s->outputs, t->outputs, s->output_count))
      return 0;
  }
  return 1;
}

TenonStatus tn_find_binding(const Description *description, int number, const Binding **binding) {
  if (number < 0 || number >= description->binding_count)
    return tn_fail(TENON_NOT_FOUND, "%s has no binding %d: it has %d, from 0 on", description->name, number,
                   description->binding_count);
  *binding = &description->bindings[number];
  return TENON_OK;
}

TenonStatus tn_find_port(const Description *description, const Binding *binding, int number, int is_output,
                         const Port **port) {
  const int count = is_output ? binding->output_count : binding->input_count;
  if (number < 0 || number >= count)
    return tn_fail(TENON_NOT_FOUND, "%s has no %s %d: it has %d, from 0 on", description->name,
                   is_output ? "output" : "input", number, count);
  *port = &(is_output ? binding->outputs : binding->inputs)[number];
  return TENON_OK;
}
