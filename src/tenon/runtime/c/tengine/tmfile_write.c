/* Writes a graph, or the part of it that one stage computes, as a tmfile: the other direction of tmfile_read.c. */

#include "tmfile.h"
#include "messages.h"
#include "order.h"
#include "tensor.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
  uint8_t *data;
  size_t used, room;
  int has_failed;
} Writer;

/* The tensors and nodes that are written, and their numbers in the file. */
typedef struct {
  const Graph *graph;
  int level;
  int32_t *tensor_numbers, *tensor_tables, *node_tables, *buffer_tables, *input_nodes, *output_nodes;
  int tensor_count, node_count, buffer_count, input_count, output_count;
} Part;

static int32_t put(Writer *w, const void *data, size_t size) {
  const size_t at = w->used, padded = (size + 3) / 4 * 4;
  if (at + padded > INT32_MAX - 64) w->has_failed = 1;
  if (!w->has_failed && at + padded > w->room) {
    const size_t room = 2 * (at + padded) + 4096;
    uint8_t *grown = realloc(w->data, room);
    if (grown == NULL) w->has_failed = 1;
    else w->data = grown, w->room = room;
  }
  if (w->has_failed) return 0;
  if (size > 0) memcpy(w->data + at, data, size);
  memset(w->data + at + size, 0, padded - size);
  w->used += padded;
  return (int32_t)at;
}

/* Words in the byte order of the file. */
static int32_t put_words(Writer *w, const int32_t *words, size_t count) {
  const int32_t at = (int32_t)w->used;
  for (size_t i = 0; i < count; i++) {
    const uint32_t word = (uint32_t)words[i];
    const uint8_t bytes[4] = {(uint8_t)word, (uint8_t)(word >> 8), (uint8_t)(word >> 16), (uint8_t)(word >> 24)};
    put(w, bytes, sizeof bytes);
  }
  return at;
}

/* A count and as many elements of `width` words. */
static int32_t put_vector(Writer *w, const int32_t *words, int32_t count, int width) {
  const int32_t at = put_words(w, &count, 1);
  put_words(w, words, (size_t)count * (size_t)width);
  return at;
}

static int32_t put_text(Writer *w, const char *text) {
  const size_t length = strlen(text) + 1;
  const int32_t row[2] = {(int32_t)length, put(w, text, length)};
  return put_words(w, row, 2);
}

/* ---------------------------------------------------------------------------------------------------------- tensors */

/* Values for constants that the file does not hold, as those of Tengine's benchmarks: small and positive. */
static int32_t put_made_up(Writer *w, const Tensor *tensor) {
  const int64_t count = tg_bytes(tensor) / tg_element_bytes(tensor->data_type);
  const int32_t at = (int32_t)w->used;
  for (int64_t i = 0; i < count && !w->has_failed; i++) {
    const float value = (float)(1 + (uint32_t)((uint64_t)i * 2654435761u) % 255) / 4096;
    const uint8_t byte = (uint8_t)(1 + i % 7), pair[2] = {0, 0x20};
    if (tensor->data_type == TENGINE_DT_FP32) put(w, &value, sizeof value);
    else if (tg_element_bytes(tensor->data_type) == 1) w->used = (size_t)put(w, &byte, 1) + 1;
    else if (tensor->data_type == TENGINE_DT_FP16) w->used = (size_t)put(w, pair, 2) + 2;
    else put_words(w, &(int32_t){1}, 1);
  }
  w->used = (w->used + 3) / 4 * 4;
  return at;
}

static int32_t put_content(Writer *w, Part *part, const Tensor *tensor) {
  const void *data = tensor->buffer != NULL ? tensor->buffer : tensor->content;
  const int32_t size = (int32_t)tg_bytes(tensor);
  const int32_t row[2] = {size, data != NULL ? put(w, data, (size_t)size) : put_made_up(w, tensor)};
  part->buffer_tables[part->buffer_count] = put_words(w, row, 2);
  return part->buffer_count++;
}

static int32_t put_quantisation(Writer *w, const Tensor *tensor) {
  if (tensor->quant_count == 0) return 0;
  int32_t *rows = malloc((size_t)tensor->quant_count * sizeof *rows);
  if (rows == NULL) return w->has_failed = 1, 0;
  for (int i = 0; i < tensor->quant_count; i++) {
    int32_t row[3] = {tensor->zero_points[i], 0, 8 * (int32_t)tg_element_bytes(tensor->data_type)};
    memcpy(&row[1], &tensor->scales[i], sizeof row[1]);
    rows[i] = put_words(w, row, 3);
  }
  const int32_t at = put_vector(w, rows, tensor->quant_count, 1);
  free(rows);
  return at;
}

/* ------------------------------------------------------------------------------------------------------------ nodes */

static void put_node(Writer *w, Part *part, const char *name, int type, int32_t parameters, const int32_t *inputs,
                     int input_count, const int32_t *outputs, int output_count) {
  const int32_t operator_row[3] = {1, type, parameters}, operator_at = put_words(w, operator_row, 3);
  const int32_t ins = input_count > 0 ? put_vector(w, inputs, input_count, 1) : 0;
  const int32_t outs = put_vector(w, outputs, output_count, 1), name_at = put_text(w, name);
  const int32_t row[7] = {part->node_count, ins, outs, operator_at, name_at, 0, 0};
  part->node_tables[part->node_count++] = put_words(w, row, 7);
}

/* The number of a tensor, which is written when it is first met; `kind` is what it is in the part. */
static int32_t number_of(Writer *w, Part *part, const Tensor *tensor, int index, int kind) {
  if (part->tensor_numbers[index] >= 0) return part->tensor_numbers[index];
  const int32_t number = part->tensor_count++;
  part->tensor_numbers[index] = number;
  const int32_t buffer = kind == TENSOR_TYPE_CONST ? put_content(w, part, tensor) : 0;
  const int32_t quantisation = put_quantisation(w, tensor), dims = put_vector(w, tensor->dims, tensor->dim_count, 1);
  const int32_t name = put_text(w, tensor->name);
  const int32_t row[8] = {number, buffer, dims, name, quantisation, tensor->layout, kind, tensor->data_type};
  part->tensor_tables[number] = put_words(w, row, 8);
  if (kind == TENSOR_TYPE_CONST || kind == TENSOR_TYPE_INPUT) {
    if (kind == TENSOR_TYPE_INPUT) part->input_nodes[part->input_count++] = part->node_count;
    put_node(w, part, tensor->name, kind == TENSOR_TYPE_CONST ? CONST_TYPE : INPUT_TYPE, 0, NULL, 0, &number, 1);
  }
  return number;
}

static int index_of(const Graph *graph, const Tensor *tensor) {
  int i = 0;
  while (graph->tensors[i] != tensor) i++;
  return i;
}

static int is_of_part(const Part *part, const Node *node) {
  return node->type != CONST_TYPE && node->type != INPUT_TYPE && node->kernel == NULL &&
         (part->level < 0 || node->level == part->level);
}

static int32_t put_parameters(Writer *w, const Node *node) {
  int32_t words[64], count = 0;
  Field field;
  for (const char *fields = node->op->fields; count < 64 && tg_next_field(&fields, &field); count++) {
    const Parameter *at = &node->parameters[count];
    if (field.kind == 'i' || field.kind == 'f') words[count] = at->word;
    else words[count] = put_vector(w, at->list, at->count, field.kind == 'A' ? 4 : 1);
  }
  return count > 0 ? put_words(w, words, (size_t)count) : 0;
}

static void put_layer(Writer *w, Part *part, const Node *node) {
  int32_t *numbers = malloc((size_t)(node->input_count + node->output_count + 1) * sizeof *numbers);
  if (numbers == NULL) {
    w->has_failed = 1;
    return;
  }
  for (int i = 0; i < node->input_count; i++) {
    const Tensor *tensor = node->inputs[i];
    const int is_constant = tensor->kind == TENSOR_TYPE_CONST;
    const int is_inside = tensor->producer != NULL && is_of_part(part, tensor->producer);
    numbers[i] = number_of(w, part, tensor, index_of(part->graph, tensor),
                           is_constant ? TENSOR_TYPE_CONST : is_inside ? TENSOR_TYPE_VAR : TENSOR_TYPE_INPUT);
  }
  int32_t *outputs = numbers + node->input_count;
  for (int i = 0; i < node->output_count; i++)
    outputs[i] = number_of(w, part, node->outputs[i], index_of(part->graph, node->outputs[i]), TENSOR_TYPE_VAR);
  if (tg_reads_across(part->graph, node, part->level)) part->output_nodes[part->output_count++] = part->node_count;
  put_node(w, part, node->name, node->type, put_parameters(w, node), numbers, node->input_count, outputs,
           node->output_count);
  free(numbers);
}

/* ------------------------------------------------------------------------------------------------------------- file */

static int take_tables(Part *part) {
  const size_t tensors = (size_t)part->graph->tensor_count + 1, nodes = tensors + (size_t)part->graph->node_count;
  int32_t *all = calloc(3 * tensors + 3 * nodes, sizeof *all);
  if (all == NULL) return -1;
  part->tensor_numbers = all;
  part->tensor_tables = all + tensors;
  part->buffer_tables = all + 2 * tensors;
  part->node_tables = all + 3 * tensors;
  part->input_nodes = part->node_tables + nodes;
  part->output_nodes = part->input_nodes + nodes;
  for (size_t i = 0; i < tensors; i++) part->tensor_numbers[i] = -1;
  return 0;
}

static void put_part(Writer *w, Part *part) {
  const Graph *graph = part->graph;
  const int32_t head[3] = {2, 0, 0};
  put_words(w, head, 3);
  for (int i = 0; part->level < 0 && i < graph->input_count; i++)
    for (int j = 0; j < graph->inputs[i]->output_count; j++) {
      const Tensor *tensor = graph->inputs[i]->outputs[j];
      number_of(w, part, tensor, index_of(graph, tensor), TENSOR_TYPE_INPUT);
    }
  for (int i = 0; i < graph->node_count; i++)
    if (is_of_part(part, graph->order[i])) put_layer(w, part, graph->order[i]);
  const int32_t name = put_text(w, "graph");
  const int32_t ins = put_vector(w, part->input_nodes, part->input_count, 1);
  const int32_t outs = put_vector(w, part->output_nodes, part->output_count, 1);
  const int32_t nodes = put_vector(w, part->node_tables, part->node_count, 1);
  const int32_t tensors = put_vector(w, part->tensor_tables, part->tensor_count, 1);
  const int32_t buffers = put_vector(w, part->buffer_tables, part->buffer_count, 1);
  const int32_t row[9] = {0, 0, 0, ins, outs, nodes, tensors, buffers, name}, at = put_words(w, row, 9);
  const int32_t graphs = put_vector(w, &at, 1, 1), root_row[4] = {0, 0, graphs, name};
  const uint32_t root = (uint32_t)put_words(w, root_row, 4);
  put_words(w, head + 1, 1); /* no table ends the file */
  for (int i = 0; !w->has_failed && i < 4; i++) w->data[8 + i] = (uint8_t)(root >> 8 * i);
}

uint8_t *tg_write_tmfile(const Graph *graph, int level, size_t *size) {
  Writer w = {NULL, 0, 0, 0};
  Part part = {graph, level, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 0};
  if (take_tables(&part) != 0) return NULL;
  put_part(&w, &part);
  free(part.tensor_numbers);
  *size = w.used;
  if (!w.has_failed) return w.data;
  free(w.data);
  tg_error("the network is larger than the 2 GB that a tmfile can have, or there is no memory for it");
  return NULL;
}
