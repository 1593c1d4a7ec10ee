#include "text_grammar.h"
#include "text_schema.h"
#include "text_tables.h"
#include <math.h>
#include <string.h>

/* A grammar is run as an automaton whose states are sets of stacks of rules, made as they are needed.  What does not fit
   into the memory is made again: only states that a text stands in are kept then. */

enum { MOST_STATES = 1024, NODE_SLOTS = 1024, STATE_SLOTS = 256, SPARE_NODES = 2048 };

static size_t rounded(size_t bytes) { return (bytes + 7) / 8 * 8; }

static uint32_t steps_for(size_t length) { return length > 3072 ? GRAMMAR_MOST_STEPS : (uint32_t)(8 * length + 8191); }

/* The bytes of the parts of the memory, one after another; where `grammar` is not NULL, they are put there. */
static size_t place_parts(TextGrammar *grammar, const TenonText *text, size_t length, uint8_t *memory) {
  const uint32_t steps = steps_for(length), rules = steps / 8, nodes = steps + SPARE_NODES;
  const size_t sizes[] = {steps * sizeof(GrammarStep), rules * sizeof(GrammarRule), nodes * sizeof(GrammarNode),
                          MOST_STATES * sizeof(GrammarState), (size_t)(text->head[TEXT_VOCABULARY] / 32 + 1) * 4,
                          GRAMMAR_MOVES * sizeof(uint16_t), 2 * (size_t)nodes * sizeof(uint16_t), nodes * sizeof(uint16_t),
                          NODE_SLOTS * sizeof(uint16_t), STATE_SLOTS * sizeof(uint16_t),
                          ((size_t)text->head[TEXT_DEEPEST] + 2) * sizeof(uint16_t)};
  enum { PARTS = sizeof sizes / sizeof *sizes };
  size_t starts[PARTS], at = 0;
  for (int i = 0; i < PARTS; i++) {
    starts[i] = at;
    at += rounded(sizes[i]);
  }
  if (grammar == NULL) return at;
  grammar->steps = (GrammarStep *)(void *)(memory + starts[0]);
  grammar->rules = (GrammarRule *)(void *)(memory + starts[1]);
  grammar->nodes = (GrammarNode *)(void *)(memory + starts[2]);
  grammar->states = (GrammarState *)(void *)(memory + starts[3]);
  grammar->bits = (uint32_t *)(void *)(memory + starts[4]);
  grammar->moves = (uint16_t *)(void *)(memory + starts[5]);
  grammar->sets = (uint16_t *)(void *)(memory + starts[6]);
  grammar->stack = (uint16_t *)(void *)(memory + starts[7]);
  grammar->node_slots = (uint16_t *)(void *)(memory + starts[8]);
  grammar->state_slots = (uint16_t *)(void *)(memory + starts[9]);
  grammar->path = (uint16_t *)(void *)(memory + starts[10]);
  grammar->step_room = steps;
  grammar->rule_room = rules;
  grammar->node_room = nodes;
  grammar->set_room = 2 * nodes;
  return at;
}

size_t tenon_text_grammar_memory(const TenonText *text, const char *source, size_t length) {
  if (!tenon_text_is_schema(source, length)) return place_parts(NULL, text, length, NULL);
  return tenon_text_schema_memory(length) + place_parts(NULL, text, tenon_text_schema_room(length), NULL);
}

/* Bytes that no step tells apart are of one class. */
static void classify(TextGrammar *g) {
  uint8_t begins[257] = {0};
  for (uint32_t i = 0; i < g->step_count; i++)
    if (g->steps[i].op == GRAMMAR_BYTE) begins[g->steps[i].a] = begins[g->steps[i].b + 1] = 1;
  uint32_t number = 0;
  for (int byte = 0; byte < 256; byte++) g->classes[byte] = (uint8_t)(number += byte > 0 && begins[byte]);
  g->class_count = number + 1;
  g->state_room = GRAMMAR_MOVES / g->class_count < MOST_STATES ? GRAMMAR_MOVES / g->class_count : MOST_STATES;
}

static uint32_t node_slot(uint32_t step, uint32_t parent) {
  const uint32_t hash = (step * 0x9e3779b1u) ^ (parent * 0x85ebca77u);
  return (hash ^ hash >> 15) % NODE_SLOTS;
}

/* The node of a step above another node; 0 if there is no memory for it. */
static uint32_t node_of(TextGrammar *g, uint32_t step, uint32_t parent) {
  uint16_t *slot = &g->node_slots[node_slot(step, parent)];
  for (uint32_t i = *slot; i != GRAMMAR_NONE; i = g->nodes[i].next)
    if (g->nodes[i].step == step && g->nodes[i].parent == parent) return i;
  if (g->node_count == g->node_room) return 0;
  const GrammarNode node = {(uint16_t)step, (uint16_t)parent, *slot, 0};
  g->nodes[g->node_count] = node;
  return *slot = (uint16_t)g->node_count++;
}

/* Put a node on the stack unless it was there before. */
static int visit_node(TextGrammar *g, uint32_t step, uint32_t parent, uint32_t *count) {
  const uint32_t node = node_of(g, step, parent);
  if (node == 0) return 0;
  if (g->nodes[node].mark == g->generation) return 1;
  g->nodes[node].mark = (uint16_t)g->generation;
  g->stack[(*count)++] = (uint16_t)node;
  return 1;
}

/* Call a rule: what comes after it is a node, unless that is the end of the own rule. */
static int visit_rule(TextGrammar *g, uint32_t rule, uint32_t after, uint32_t parent, uint32_t *count) {
  while (g->steps[after].op == GRAMMAR_JUMP) after = tenon_text_grammar_target(g, after);
  if (g->steps[after].op != GRAMMAR_END) parent = node_of(g, after, parent);
  else if (parent == 0) return visit_node(g, g->rules[rule].start, 0, count);
  return parent != 0 && visit_node(g, g->rules[rule].start, parent, count);
}

static int visit_next(TextGrammar *g, uint32_t number, uint32_t *count, int *is_end) {
  const GrammarNode node = g->nodes[number];
  const GrammarStep step = g->steps[node.step];
  switch (step.op) {
    case GRAMMAR_BYTE:
      if (g->set_count == g->set_room) return 0;
      g->sets[g->set_count++] = (uint16_t)number;
      return 1;
    case GRAMMAR_SPLIT:
      return visit_node(g, node.step + 1u, node.parent, count) && visit_node(g, tenon_text_grammar_target(g, node.step), node.parent, count);
    case GRAMMAR_JUMP: return visit_node(g, tenon_text_grammar_target(g, node.step), node.parent, count);
    case GRAMMAR_CALL: return visit_rule(g, step.a, node.step + 1u, node.parent, count);
    case GRAMMAR_END:
      if (node.parent != 0) return visit_node(g, g->nodes[node.parent].step, g->nodes[node.parent].parent, count);
      *is_end = 1;
      return 1;
    default: return 1;
  }
}

static uint32_t state_slot(const TextGrammar *g, uint32_t first, uint32_t count) {
  uint32_t hash = count;
  for (uint32_t i = 0; i < count; i++) hash = (hash ^ g->sets[first + i]) * 16777619u;
  return (hash ^ hash >> 15) % STATE_SLOTS;
}

static void sort_set(uint16_t *set, uint32_t count) {
  for (uint32_t i = 1; i < count; i++) {
    const uint16_t node = set[i];
    uint32_t at = i;
    for (; at > 0 && set[at - 1] > node; at--) set[at] = set[at - 1];
    set[at] = node;
  }
}

/* The state of the nodes behind the sets of all others; GRAMMAR_NONE if there is no memory for it. */
static uint32_t state_of(TextGrammar *g, uint32_t first, int is_end) {
  const uint32_t count = g->set_count - first;
  sort_set(g->sets + first, count);
  uint16_t *slot = &g->state_slots[state_slot(g, first, count)];
  for (uint32_t i = *slot; i != GRAMMAR_NONE; i = g->states[i].next) {
    const GrammarState *state = &g->states[i];
    if (state->count != count || state->is_end != is_end) continue;
    if (count > 0 && memcmp(g->sets + state->first, g->sets + first, count * sizeof *g->sets) != 0) continue;
    g->set_count = first;
    return i;
  }
  if (g->state_count == g->state_room) return GRAMMAR_NONE;
  const uint32_t number = g->state_count++;
  GrammarState *state = &g->states[number]; /* whose `moved` stays */
  state->first = first;
  state->count = (uint16_t)count;
  state->next = *slot;
  state->is_end = (uint8_t)is_end;
  memset(g->moves + (size_t)number * g->class_count, 0xff, g->class_count * sizeof *g->moves);
  return *slot = (uint16_t)number;
}

/* The state after a byte of a state, or with `from` GRAMMAR_NONE the first one; GRAMMAR_NONE if there is no memory for it. */
static uint32_t made_state(TextGrammar *g, uint32_t from, int byte) {
  const uint32_t first = g->set_count;
  uint32_t count = 0;
  int is_end = 0, is_done = 1;
  if (++g->generation > 0xffff) {
    for (uint32_t i = 0; i < g->node_count; i++) g->nodes[i].mark = 0;
    g->generation = 1;
  }
  if (from == GRAMMAR_NONE) is_done = visit_node(g, g->rules[g->root].start, 0, &count);
  for (uint32_t i = 0; from != GRAMMAR_NONE && is_done && i < g->states[from].count; i++) {
    const GrammarNode node = g->nodes[g->sets[g->states[from].first + i]];
    const GrammarStep step = g->steps[node.step];
    if (byte >= step.a && byte <= step.b) is_done = visit_node(g, node.step + 1u, node.parent, &count);
  }
  while (is_done && count > 0) is_done = visit_next(g, g->stack[--count], &count, &is_end);
  const uint32_t state = is_done ? state_of(g, first, is_end) : GRAMMAR_NONE;
  if (state == GRAMMAR_NONE) g->set_count = first;
  return state;
}

static void clear_slots(TextGrammar *g) {
  for (int i = 0; i < NODE_SLOTS; i++) g->node_slots[i] = GRAMMAR_NONE;
  for (int i = 0; i < STATE_SLOTS; i++) g->state_slots[i] = GRAMMAR_NONE;
}

/* Keep the nodes of states that are kept, at the beginning; `mark` is where each one moves to.  A node's parent was made
   before it. */
static void collect_nodes(TextGrammar *g) {
  uint32_t count = 1;
  for (uint32_t i = 0; i < g->node_count; i++) g->nodes[i].mark = 0;
  for (uint32_t s = 0; s < g->state_count; s++)
    for (uint32_t i = 0; g->states[s].is_kept && i < g->states[s].count; i++)
      for (uint32_t n = g->sets[g->states[s].first + i]; n != 0 && !g->nodes[n].mark; n = g->nodes[n].parent)
        g->nodes[n].mark = 1;
  for (uint32_t i = 1; i < g->node_count; i++) {
    if (!g->nodes[i].mark) continue;
    const uint32_t step = g->nodes[i].step, parent = g->nodes[g->nodes[i].parent].mark;
    uint16_t *slot = &g->node_slots[node_slot(step, parent)];
    g->nodes[count].step = (uint16_t)step;
    g->nodes[count].parent = (uint16_t)parent;
    g->nodes[count].next = *slot;
    g->nodes[i].mark = *slot = (uint16_t)count++;
  }
  g->node_count = count;
}

/* Forget all states but the first `count` of the path, which get other numbers. */
static void forget(TextGrammar *g, uint32_t count) {
  const uint32_t states = g->state_count;
  g->masked = GRAMMAR_NONE;
  for (uint32_t i = 0; i < states; i++) g->states[i].is_kept = 0;
  for (uint32_t i = 0; i < count; i++) g->states[g->path[i]].is_kept = 1;
  clear_slots(g);
  collect_nodes(g);
  g->state_count = g->set_count = 0;
  for (uint32_t i = 0; i < states; i++) {
    const GrammarState old = g->states[i];
    if (!old.is_kept) continue;
    const uint32_t first = g->set_count;
    for (uint32_t n = 0; n < old.count; n++) g->sets[g->set_count++] = g->nodes[g->sets[old.first + n]].mark;
    const uint32_t number = state_of(g, first, old.is_end);
    g->states[i].moved = (uint16_t)number;
  }
  for (uint32_t i = 0; i < count; i++) g->path[i] = g->states[g->path[i]].moved;
  for (uint32_t i = 0; i < g->node_count; i++) g->nodes[i].mark = 0;
  g->generation = 0;
}

/* Go on by a byte behind `depth` others; 0 if it may not follow, or the rules are too deep for the memory. */
static int follow(TextGrammar *g, uint32_t depth, uint8_t byte) {
  uint16_t *move = &g->moves[(size_t)g->path[depth] * g->class_count + g->classes[byte]];
  uint32_t state = *move;
  if (state == GRAMMAR_NONE) {
    state = made_state(g, g->path[depth], byte);
    if (state == GRAMMAR_NONE) {
      forget(g, depth + 1);
      state = made_state(g, g->path[depth], byte);
      if (state == GRAMMAR_NONE) return 0;
    }
    g->moves[(size_t)g->path[depth] * g->class_count + g->classes[byte]] = (uint16_t)state;
  }
  g->path[depth + 1] = (uint16_t)state;
  return g->states[state].count > 0 || g->states[state].is_end;
}

int tenon_text_grammar_open(TextGrammar *g, const TenonText *text, const char *source, size_t length, void *memory) {
  const int is_schema = tenon_text_is_schema(source, length);
  const size_t own = is_schema ? tenon_text_schema_memory(length) : 0;
  memset(g, 0, sizeof *g);
  g->text = text;
  g->source = is_schema ? memory : (const uint8_t *)source;
  g->length = is_schema ? tenon_text_schema_rules(source, length, memory, &g->mistake, &g->at) : length;
  if (g->mistake != NULL) return TENON_TEXT_BAD_GRAMMAR;
  place_parts(g, text, is_schema ? tenon_text_schema_room(length) : length, (uint8_t *)memory + own);
  if (tenon_text_grammar_read(g) != 0) {
    if (is_schema) g->at = 0;
    return TENON_TEXT_BAD_GRAMMAR;
  }
  classify(g);
  clear_slots(g);
  memset(g->nodes, 0, sizeof *g->nodes);
  g->node_count = 1;
  const uint32_t first = made_state(g, GRAMMAR_NONE, 0);
  g->path[0] = (uint16_t)first;
  g->masked = GRAMMAR_NONE;
  g->mistake = first == GRAMMAR_NONE ? "it is too large" : NULL;
  return first == GRAMMAR_NONE ? TENON_TEXT_BAD_GRAMMAR : 0;
}

/* Set the bits of the tokens whose bytes may follow.  Tokens are in the order of their bytes, so that one has those of
   the path in common with the one before. */
static void allow_tokens(TextGrammar *g) {
  const uint32_t *order = (const uint32_t *)tenon_text_section(g->text, TEXT_ORDER);
  const uint8_t *common = (const uint8_t *)tenon_text_section(g->text, TEXT_COMMON);
  const uint32_t *starts = (const uint32_t *)tenon_text_section(g->text, TEXT_PIECE_STARTS);
  const uint8_t *pieces = (const uint8_t *)tenon_text_section(g->text, TEXT_PIECES);
  uint32_t done = 0;
  for (uint32_t i = 0; i < g->text->head[TEXT_ORDER_COUNT]; i++) {
    if (common[i] > done) continue;
    const uint32_t token = order[i], length = starts[token + 1] - starts[token];
    const uint8_t *piece = pieces + starts[token];
    for (done = common[i]; done < length && follow(g, done, piece[done]);) done++;
    if (done == length) g->bits[token >> 5] |= 1u << (token & 31);
  }
}

/* Find the tokens that may come next, unless they are known since the text was last in its state, as within a string. */
static void find_tokens(TextGrammar *g) {
  const uint32_t *ends = (const uint32_t *)tenon_text_section(g->text, TEXT_END_TOKENS);
  const uint32_t vocabulary = g->text->head[TEXT_VOCABULARY];
  if (g->masked == g->path[0]) return;
  memset(g->bits, 0, ((size_t)vocabulary / 32 + 1) * sizeof *g->bits);
  allow_tokens(g);
  for (uint32_t i = 0; i < g->text->head[TEXT_ENDS] && g->states[g->path[0]].is_end; i++)
    if (ends[i] < vocabulary) g->bits[ends[i] >> 5] |= 1u << (ends[i] & 31);
  g->masked = g->path[0];
}

size_t tenon_text_grammar_mask(TextGrammar *g, float *logits, uint32_t size) {
  const uint32_t vocabulary = g->text->head[TEXT_VOCABULARY];
  size_t count = 0;
  find_tokens(g);
  for (uint32_t token = 0; token < size; token++) {
    const int may_come = token < vocabulary && g->bits[token >> 5] >> (token & 31) & 1;
    if (!may_come) logits[token] = -INFINITY;
    count += (size_t)may_come;
  }
  return count;
}

int tenon_text_grammar_add(TextGrammar *g, const char *piece, size_t length) {
  for (size_t i = 0; i < length; i++) {
    if (!follow(g, 0, (uint8_t)piece[i])) break;
    g->path[0] = g->path[1];
  }
  const GrammarState *state = &g->states[g->path[0]];
  return state->is_end && state->count == 0;
}
