/* The devices of a graph and its nodes, as the compiler takes them. */

#include "devices.h"

#include <string.h>

int tg_has_node_devices(const Graph *graph) {
  for (int i = 0; i < graph->node_count; i++)
    if (graph->nodes[i]->device[0] != 0) return 1;
  return 0;
}

/* As the compiler calls it: "opencl" is OCL. */
static const char *name_of(const char *device) {
  const char *target = tg_gpu_target(device);
  return target != NULL ? target : device;
}

static int is_cpu(const char *device) { return strcmp(device, "CPU") == 0; }

/* The device of the graph (-1), or of a node. */
static const char *device_at(const Graph *graph, int i) { return i < 0 ? graph->device : graph->nodes[i]->device; }

static int is_first(const Graph *graph, int number) {
  for (int i = -1; i < number; i++)
    if (strcmp(device_at(graph, i), device_at(graph, number)) == 0) return 0;
  return 1;
}

const char *tg_device_names(const Graph *graph, Pool *pool) {
  const char *names = "";
  for (int i = -1; names != NULL && i < graph->node_count; i++) {
    const char *device = device_at(graph, i);
    if (device[0] == 0 || is_cpu(device) || !is_first(graph, i)) continue;
    names = tn_pool_format(pool, "%s%s%s", names, *names ? "," : "", name_of(device));
  }
  return names;
}

/* A pattern that only this name matches. */
static const char *pattern_of(Pool *pool, const char *name) {
  char *pattern = tn_pool_take(pool, 3 * strlen(name) + 1), *to = pattern;
  for (; pattern != NULL && *name; name++) {
    const int is_special = strchr("*?[", *name) != NULL;
    if (is_special) *to++ = '[';
    *to++ = *name;
    if (is_special) *to++ = ']';
  }
  return pattern;
}

static void add_rule(Texts *words, const char *pattern, const char *device) {
  tn_texts_add(words, "--device-of");
  tn_texts_add(words, pattern != NULL ? tn_pool_format(words->pool, "%s=%s", pattern, name_of(device)) : NULL);
}

void tg_add_device_rules(const Graph *graph, int level, Texts *words) {
  if (is_cpu(graph->device) || tg_gpu_target(graph->device) != NULL) add_rule(words, "*", graph->device);
  for (int i = 0; i < graph->node_count; i++) {
    const Node *node = graph->nodes[i];
    const int is_layer = node->type != CONST_TYPE && node->type != INPUT_TYPE && node->kernel == NULL;
    if (node->device[0] == 0 || !is_layer || (level >= 0 && node->level != level)) continue;
    add_rule(words, pattern_of(words->pool, node->name), node->device);
  }
}
