/* The parameters of operators as attributes of nodes. */

#include "graph.h"
#include "messages.h"

#include <string.h>

static int no_attribute(const Node *node, const char *name) {
  return tg_error("node '%s': %s has no attribute '%s': it has %s", node->name, node->op != NULL ? node->op->name : "its operator",
                  name, node->op != NULL && *node->op->fields ? node->op->fields : "none");
}

/* A parameter by its name; NULL after a message. */
static Parameter *parameter(node_t handle, const char *name, char *kind) {
  const Node *node = tg_node(handle);
  Field field;
  int number = 0;
  if (node == NULL) return NULL;
  if (name == NULL) return tg_error("the name of an attribute is NULL"), NULL;
  if (node->op != NULL && node->parameters != NULL)
    for (const char *fields = node->op->fields; tg_next_field(&fields, &field); number++)
      if (strcmp(field.name, name) == 0) return *kind = field.kind, &node->parameters[number];
  no_attribute(node, name);
  return NULL;
}

static int wrong_kind(const char *name, char kind) {
  const char *what = kind == 'i' ? "an int" : kind == 'f' ? "a float" : kind == 'I' ? "a list of ints" : "a list of floats";
  return tg_error("attribute '%s' is %s%s", name, what, kind == 'i' || kind == 'f' ? "" : ": use set_node_attr_generic");
}

static int access_scalar(node_t node, const char *name, char kind, void *to, const void *from) {
  char found;
  Parameter *at = parameter(node, name, &found);
  if (at == NULL) return -1;
  if (to == NULL && from == NULL) return tg_error("attribute '%s': the value is NULL", name);
  if (found != kind) return wrong_kind(name, found);
  if (to != NULL) return memcpy(to, &at->word, sizeof at->word), 0;
  memcpy(&at->word, from, sizeof at->word);
  tg_node(node)->graph->is_changed = 1;
  return 0;
}

int get_node_attr_int(node_t node, const char *name, int *value) { return access_scalar(node, name, 'i', value, NULL); }

int get_node_attr_float(node_t node, const char *name, float *value) {
  return access_scalar(node, name, 'f', value, NULL);
}

int set_node_attr_int(node_t node, const char *name, const int *value) {
  return access_scalar(node, name, 'i', NULL, value);
}

int set_node_attr_float(node_t node, const char *name, const float *value) {
  return access_scalar(node, name, 'f', NULL, value);
}

static size_t words_of(char kind, const Parameter *at) {
  if (kind == 'i' || kind == 'f') return 1;
  return (size_t)at->count * (kind == 'A' ? 4 : 1);
}

/* Any kind of attribute as 32-bit words, whatever `type` calls it. */
int get_node_attr_generic(node_t node, const char *name, const char *type, void *value, int size) {
  char kind;
  (void)type;
  const Parameter *at = parameter(node, name, &kind);
  if (at == NULL) return -1;
  const size_t bytes = 4 * words_of(kind, at);
  if (value == NULL || size < 0 || (size_t)size < bytes)
    return tg_error("attribute '%s' has %zu bytes, and there is room for %d", name, bytes, size);
  if (bytes > 0) memcpy(value, kind == 'i' || kind == 'f' ? &at->word : at->list, bytes);
  return 0;
}

int set_node_attr_generic(node_t handle, const char *name, const char *type, const void *value, int size) {
  char kind;
  (void)type;
  Parameter *at = parameter(handle, name, &kind);
  if (at == NULL) return -1;
  Node *node = tg_node(handle);
  const int is_list = kind != 'i' && kind != 'f', unit = kind == 'A' ? 16 : 4;
  if (value == NULL || size < 0 || size % unit != 0 || (!is_list && size != 4))
    return tg_error("attribute '%s' of %d bytes: it has %s%d", name, size, is_list ? "a multiple of " : "", unit);
  node->graph->is_changed = 1;
  if (!is_list) return memcpy(&at->word, value, 4), 0;
  int32_t *list = tn_pool_take(&node->graph->pool, (size_t)size);
  if (list == NULL) return tg_error("no memory for attribute '%s'", name);
  memcpy(list, value, (size_t)size);
  at->list = list;
  at->count = size / unit;
  return 0;
}

/* Attributes are those of the operator: none holds a pointer, and none can be added. */
int get_node_attr_pointer(node_t node, const char *name, void *value) { return (void)node, (void)name, (void)value, -1; }

int set_node_attr_pointer(node_t node, const char *name, const void *value) {
  return (void)node, (void)name, (void)value, -1;
}

int add_node_attr(node_t node, const char *name, const char *type, int size) {
  (void)node, (void)name, (void)type, (void)size;
  return -1;
}
