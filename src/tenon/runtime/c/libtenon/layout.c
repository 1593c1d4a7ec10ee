/* The layout of memory that a library's code was generated for: the text that bundle/layout.py writes into it. */

#include "description.h"
#include "errors.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
  Pool *pool;
  const char *at, *end;
} Lines;

static int take(Lines *lines, const char *word) {
  const size_t length = strlen(word);
  if ((size_t)(lines->end - lines->at) < length || memcmp(lines->at, word, length) != 0) return 0;
  lines->at += length;
  return 1;
}

static int take_number(Lines *lines, const char *word, uint64_t *number) {
  if (!take(lines, word)) return 0;
  const char *begin = lines->at;
  for (*number = 0; lines->at < lines->end && *lines->at >= '0' && *lines->at <= '9' && lines->at - begin < 18; lines->at++)
    *number = 10 * *number + (uint64_t)(*lines->at - '0');
  return lines->at > begin;
}

static int take_int(Lines *lines, const char *word, int *number) {
  uint64_t wide;
  if (!take_number(lines, word, &wide) || wide > 1 << 30) return 0;
  *number = (int)wide;
  return 1;
}

static int take_line_end(Lines *lines) { return lines->at == lines->end || take(lines, "\n"); }

static const char *line_end(const Lines *lines) {
  const char *end = memchr(lines->at, '\n', (size_t)(lines->end - lines->at));
  return end != NULL ? end : lines->end;
}

static int count_lines(const Lines *lines, const char *word) {
  Lines rest = *lines;
  int count = 0;
  while (take(&rest, word)) {
    count++;
    rest.at = line_end(&rest);
    take(&rest, "\n");
  }
  return count;
}

static int take_port(Lines *lines, const char *word, Port *port, const JsonValue **extents) {
  const JsonValue *fields[PORT_FIELDS];
  if (!take(lines, word)) return 0;
  const char *end = line_end(lines);
  const JsonValue *row = tn_json_parse(lines->pool, lines->at, (size_t)(end - lines->at));
  if (row == NULL || row->kind != JSON_ARRAY || row->count < 8) return 0;
  lines->at = end;
  const JsonValue *value = row->first;
  for (int i = 0; i < PORT_FIELDS; i++, value = value != NULL ? value->next : NULL) fields[i] = value;
  *extents = fields[PORT_EXTENTS];
  return tn_read_port(fields, port) && take_line_end(lines);
}

static int take_ports(Lines *lines, const char *word, Port **ports, int *count, const JsonValue ***extents) {
  *count = count_lines(lines, word);
  *ports = tn_pool_take(lines->pool, (size_t)*count * sizeof **ports);
  *extents = tn_pool_take(lines->pool, (size_t)*count * sizeof **extents);
  if (*ports == NULL || *extents == NULL) return 0;
  for (int i = 0; i < *count; i++)
    if (!take_port(lines, word, &(*ports)[i], &(*extents)[i])) return 0;
  return 1;
}

static int find_extents(const Binding *binding, Port *ports, int count, const JsonValue *const *extents) {
  for (int i = 0; i < count; i++)
    if (!tn_find_extents(binding, extents[i], &ports[i])) return 0;
  return 1;
}

static int take_binding(Lines *lines, Binding *binding) {
  const JsonValue **inputs, **outputs;
  if (!take(lines, "entry ")) return 0;
  const char *begin = lines->at, *end = memchr(begin, ' ', (size_t)(line_end(lines) - begin));
  if (end == NULL || (binding->entry = tn_pool_text(lines->pool, begin, (size_t)(end - begin))) == NULL) return 0;
  lines->at = end;
  if (!take_number(lines, " mutable ", &binding->mutable_bytes) ||
      !take_number(lines, " activations ", &binding->activations) || !take_line_end(lines))
    return 0;
  if (!take_ports(lines, "input ", &binding->inputs, &binding->input_count, &inputs)) return 0;
  if (!take_ports(lines, "output ", &binding->outputs, &binding->output_count, &outputs)) return 0;
  return find_extents(binding, binding->inputs, binding->input_count, inputs) &&
         find_extents(binding, binding->outputs, binding->output_count, outputs);
}

static int count_entries(const Lines *lines) {
  int count = 0;
  for (const char *at = lines->at; at < lines->end; at++)
    if ((at == lines->at || at[-1] == '\n') && lines->end - at > 6 && memcmp(at, "entry ", 6) == 0) count++;
  return count;
}

static int take_all(Lines *lines, Description *description) {
  if (!take_number(lines, "constant ", &description->constant) ||
      !take_number(lines, " mutable ", &description->mutable_bytes) ||
      !take_number(lines, " activations ", &description->activations) ||
      !take_number(lines, " ", &description->alignment) || !take_line_end(lines) ||
      !take_int(lines, "threads ", &description->threads) ||
      !take_int(lines, " memory by thread timed calls ", &description->timed_calls) || !take_line_end(lines))
    return 0;
  const int count = count_entries(lines);
  Binding *bindings = tn_pool_take(lines->pool, (size_t)count * sizeof *bindings);
  if (bindings == NULL) return 0;
  for (int i = 0; i < count; i++)
    if (!take_binding(lines, &bindings[i])) return 0;
  /* The first entry is that of the whole bundle; if there are several bindings, all of them follow. */
  description->bindings = count > 1 ? bindings + 1 : bindings;
  description->binding_count = count > 1 ? count - 1 : count;
  return lines->at == lines->end;
}

TenonStatus tn_read_layout(Pool *pool, const char *text, size_t size, const char *origin, Description *description) {
  Lines lines = {pool, text, text + size};
  const char *why = take_all(&lines, description) ? tn_check_description(description) : "it is not of this version of Tenon";
  if (why == NULL) return TENON_OK;
  return tn_fail(TENON_DAMAGED, "%s: the code's own layout of memory is wrong: %s: compile the model again", origin, why);
}
