/* manifest.json of a bundle (bundle/manifest.py): its digest, and what it says of the network. */

#include "description.h"
#include "digest.h"
#include "errors.h"

#include <stdio.h>
#include <string.h>

enum { FORMAT = 1, DIGEST = 32, MOST_THREADS = 4096 };

static const char before_digest[] = "\n \"digest\": \"", wrong_field[] = "a field is missing or wrong";

static const char *find(const char *text, size_t size, const char *word) {
  const size_t length = strlen(word);
  for (const char *at = text; size >= length && at <= text + size - length; at++) {
    at = memchr(at, word[0], (size_t)(text + size - length - at) + 1);
    if (at == NULL) return NULL;
    if (memcmp(at, word, length) == 0) return at;
  }
  return NULL;
}

/* The digest is that of the text with an empty digest. */
static int digest_is_right(const char *text, size_t size) {
  const char *at = find(text, size, before_digest);
  if (at == NULL) return 0;
  at += sizeof before_digest - 1;
  if ((size_t)(text + size - at) < 2 * DIGEST + 1 || at[2 * DIGEST] != '"') return 0;
  Blake2b state;
  uint8_t digest[DIGEST];
  char hex[2 * DIGEST + 1];
  tn_blake2b_start(&state, DIGEST);
  tn_blake2b_add(&state, text, (size_t)(at - text));
  tn_blake2b_add(&state, at + 2 * DIGEST, (size_t)(text + size - at) - 2 * DIGEST);
  tn_blake2b_end(&state, digest);
  tn_hex(digest, DIGEST, hex);
  return memcmp(hex, at, 2 * DIGEST) == 0;
}

static int get_size(const JsonValue *object, const char *key, uint64_t *size) {
  const JsonValue *value = tn_json_get(object, key);
  if (value == NULL || value->kind != JSON_NUMBER || !value->is_integer || value->integer < 0) return 0;
  *size = (uint64_t)value->integer;
  return 1;
}

static int get_int(const JsonValue *object, const char *key, int missing, int *number) {
  uint64_t size = (uint64_t)missing;
  if (tn_json_get(object, key) != NULL && !get_size(object, key, &size)) return 0;
  *number = (int)size;
  return size < (uint64_t)1 << 31;
}

static const char *get_text(const JsonValue *object, const char *key) {
  const JsonValue *value = tn_json_get(object, key);
  return value != NULL && value->kind == JSON_STRING && strlen(value->text) == value->count ? value->text : NULL;
}

static int read_ports(Pool *pool, const JsonValue *list, Port **ports, int *count) {
  if (list == NULL || list->kind != JSON_ARRAY) return 0;
  *count = (int)list->count;
  if ((*ports = tn_pool_take(pool, list->count * sizeof **ports)) == NULL) return 0;
  Port *port = *ports;
  for (const JsonValue *object = list->first; object != NULL; object = object->next, port++) {
    static const char *const keys[PORT_FIELDS] = {"name",    "dtype", "shape",  "offset", "bytes",
                                                  "extents", "size",  "string", "scale",  "zero_point"};
    const JsonValue *fields[PORT_FIELDS];
    for (int i = 0; i < PORT_FIELDS; i++) fields[i] = tn_json_get(object, keys[i]);
    if (!tn_read_port(fields, port)) return 0;
  }
  return 1;
}

static int find_extents(const Binding *binding, const JsonValue *list, Port *ports) {
  for (const JsonValue *object = list->first; object != NULL; object = object->next)
    if (!tn_find_extents(binding, tn_json_get(object, "extents"), ports++)) return 0;
  return 1;
}

static int read_binding(Pool *pool, const JsonValue *object, const JsonValue *memory, Binding *binding) {
  const JsonValue *inputs = tn_json_get(object, "inputs"), *outputs = tn_json_get(object, "outputs");
  binding->entry = get_text(object, "entry");
  if (binding->entry == NULL || !get_size(memory, "mutable", &binding->mutable_bytes)) return 0;
  if (!get_size(memory, "activations", &binding->activations)) return 0;
  if (!read_ports(pool, inputs, &binding->inputs, &binding->input_count)) return 0;
  if (!read_ports(pool, outputs, &binding->outputs, &binding->output_count)) return 0;
  return find_extents(binding, inputs, binding->inputs) && find_extents(binding, outputs, binding->outputs);
}

static int read_bindings(Pool *pool, const JsonValue *root, const JsonValue *memory, Description *description) {
  const JsonValue *list = tn_json_get(root, "bindings");
  const size_t count = list != NULL && list->kind == JSON_ARRAY && list->count > 0 ? list->count : 1;
  description->binding_count = (int)count;
  if ((description->bindings = tn_pool_take(pool, count * sizeof(Binding))) == NULL) return 0;
  if (list == NULL || list->first == NULL) return read_binding(pool, root, memory, description->bindings);
  Binding *binding = description->bindings;
  for (const JsonValue *object = list->first; object != NULL; object = object->next)
    if (!read_binding(pool, object, object, binding++)) return 0;
  return 1;
}

static int parse_steps(Pool *pool, Description *description) {
  if (description->steps != NULL || description->nodes == NULL) return 1;
  const JsonValue *list = tn_json_parse(pool, description->nodes->text, description->nodes->count);
  if (list == NULL || list->kind != JSON_ARRAY) return 0;
  TenonStep *steps = tn_pool_take(pool, list->count * sizeof *steps), *step = steps;
  if (steps == NULL) return 0;
  for (const JsonValue *object = list->first; object != NULL; object = object->next, step++) {
    step->layer = get_text(object, "layer");
    step->op = get_text(object, "op");
    step->kernel = get_text(object, "kernel");
    if (step->layer == NULL || step->op == NULL || step->kernel == NULL) return 0;
    if (!get_size(object, "macs", &step->macs)) return 0;
  }
  description->steps = steps;
  description->step_count = (int)list->count;
  return 1;
}

static int read_checksum(const char *text, uint8_t checksum[8]) {
  char again[17];
  if (text == NULL || strlen(text) != 16) return 0;
  for (int i = 0; i < 8; i++) {
    unsigned byte = 0;
    for (int j = 0; j < 2; j++) {
      const char c = text[2 * i + j];
      byte = byte << 4 | (unsigned)(c >= 'a' ? c - 'a' + 10 : c - '0');
    }
    checksum[i] = (uint8_t)byte;
  }
  tn_hex(checksum, 8, again);
  return strcmp(text, again) == 0;
}

static int read_files(Pool *pool, const JsonValue *list, Description *description) {
  if (list == NULL || list->kind != JSON_OBJECT) return 0;
  description->file_count = (int)list->count;
  if ((description->files = tn_pool_take(pool, list->count * sizeof(FileRecord))) == NULL) return 0;
  FileRecord *file = description->files;
  for (const JsonValue *object = list->first; object != NULL; object = object->next, file++) {
    file->file = object->key;
    if (file->file[strcspn(file->file, "/\\")] != 0 || !get_size(object, "bytes", &file->bytes)) return 0;
    if (!read_checksum(get_text(object, "checksum"), file->checksum)) return 0;
  }
  return 1;
}

/* Most of a manifest is not needed to run a bundle: it stays JSON_TEXT. */
static int parse_needed(Pool *pool, JsonValue *root) {
  static const char needed[][9] = {"bindings", "entry", "files",   "format",  "inputs", "language",
                                   "memory",   "name",  "options", "outputs", "target", "threads"};
  if (root == NULL) return 0;
  for (JsonValue *member = root->first; member != NULL; member = member->next)
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) {
      if (strcmp(member->key, needed[i]) != 0) continue;
      const JsonValue *value = tn_json_parse(pool, member->text, member->count);
      if (value == NULL) return 0;
      const char *key = member->key;
      JsonValue *next = member->next;
      *member = *value;
      member->key = key;
      member->next = next;
      break;
    }
  return 1;
}

static int read_all(Pool *pool, const JsonValue *root, Description *description) {
  const JsonValue *memory = tn_json_get(root, "memory"), *target = tn_json_get(root, "target");
  const JsonValue *profile = tn_json_get(tn_json_get(root, "options"), "profile");
  description->name = get_text(root, "name");
  description->target = get_text(target, "name");
  if (description->name == NULL || description->target == NULL) return 0;
  if (!get_size(memory, "constant", &description->constant)) return 0;
  if (!get_size(memory, "mutable", &description->mutable_bytes)) return 0;
  if (!get_size(memory, "activations", &description->activations)) return 0;
  if (!get_size(memory, "alignment", &description->alignment)) return 0;
  if (!get_int(root, "threads", 1, &description->threads) || description->threads > MOST_THREADS) return 0;
  if (!read_bindings(pool, root, memory, description)) return 0;
  if ((description->nodes = tn_json_get(root, "nodes")) == NULL) return 0;
  if (!read_files(pool, tn_json_get(root, "files"), description)) return 0;
  const JsonValue *ports = tn_json_get(tn_json_get(root, "language"), "ports");
  description->tokens = get_text(ports, "tokens");
  description->logits = get_text(ports, "logits");
  if (profile == NULL || profile->kind != JSON_TRUE) return 1;
  if (!parse_steps(pool, description)) return 0;
  description->timed_calls = description->step_count;
  return 1;
}

static TenonStatus damaged(const char *origin, const char *why) {
  return tn_fail(TENON_DAMAGED, "%s: manifest.json is damaged: %s: compile the model again", origin, why);
}

TenonStatus tn_read_steps(Pool *pool, const char *origin, Description *description) {
  return parse_steps(pool, description) ? TENON_OK : damaged(origin, wrong_field);
}

TenonStatus tn_read_manifest(Pool *pool, const char *text, size_t size, const char *origin, Description *description) {
  JsonValue *root = tn_json_split(pool, text, size);
  uint64_t format = FORMAT;
  if (!parse_needed(pool, root)) return damaged(origin, "it is no JSON");
  if (get_size(root, "format", &format) && format != FORMAT)
    return tn_fail(TENON_DAMAGED, "%s: the bundle has format %llu and this libtenon reads %d: %s", origin,
                   (unsigned long long)format, FORMAT,
                   format > FORMAT ? "use a newer libtenon" : "compile the model again");
  if (!digest_is_right(text, size))
    return tn_fail(TENON_DAMAGED, "%s: manifest.json was changed or damaged (its digest differs): compile the model again",
                   origin);
  const char *why = read_all(pool, root, description) ? tn_check_description(description) : wrong_field;
  return why == NULL ? TENON_OK : damaged(origin, why);
}
