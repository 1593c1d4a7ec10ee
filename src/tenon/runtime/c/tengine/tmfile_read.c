/* Reads tmfiles of version 2: tables of 32-bit words that point at each other by their offset in the file.  Every read
   is checked.  Format: source/serializer/tmfile/tm2_format.h of OAID/Tengine. */

#include "tmfile.h"
#include "messages.h"
#include "tensor.h"

#include <string.h>

enum { MOST_ENTRIES = 1 << 20, NO_OFFSET = 0 };

typedef struct {
  const uint8_t *data;
  size_t size;
  int is_damaged;
} Reader;

static int32_t word_at(Reader *r, int64_t at) {
  int32_t word = 0;
  if (at <= 0 || at + 4 > (int64_t)r->size) return r->is_damaged = 1, 0;
  for (int i = 3; i >= 0; i--) word = (int32_t)((uint32_t)word << 8 | r->data[at + i]);
  return word;
}

static int32_t field(Reader *r, int32_t table, int number) { return word_at(r, (int64_t)table + 4 * number); }

/* The count of a vector, and where its elements begin; none at offset 0. */
static int32_t vector_at(Reader *r, int32_t at, int64_t *begin, int width) {
  if (at == NO_OFFSET) return 0;
  const int32_t count = word_at(r, at);
  *begin = (int64_t)at + 4;
  if (count < 0 || count > MOST_ENTRIES || *begin + 4 * (int64_t)count * width > (int64_t)r->size)
    return r->is_damaged = 1, 0;
  return count;
}

static const char *text_at(Reader *r, int32_t at, size_t *length) {
  *length = 0;
  if (at == NO_OFFSET) return "";
  const int32_t size = field(r, at, 0), begin = field(r, at, 1);
  if (size < 0 || size > 4096 || begin < 0 || (size_t)begin + (size_t)size > r->size) return r->is_damaged = 1, "";
  const char *text = (const char *)r->data + begin, *end = memchr(text, 0, (size_t)size);
  *length = end != NULL ? (size_t)(end - text) : (size_t)size;
  return text;
}

int tg_is_tmfile(const File *file) {
  if (file->size < 64 || memcmp(file->data, "\2\0\0\0\0\0", 6) != 0) return 0;
  Reader r = {file->data, file->size, 0};
  const int32_t root = word_at(&r, 8);
  return root >= 12 && (size_t)root + 16 <= file->size;
}

/* ---------------------------------------------------------------------------------------------------------- tensors */

static int read_quantisation(Reader *r, Tensor *tensor, int32_t at) {
  int64_t begin = 0;
  const int32_t count = vector_at(r, at, &begin, 1);
  if (count == 0) return 0;
  tensor->scales = tn_pool_take(&tensor->graph->pool, (size_t)count * sizeof *tensor->scales);
  tensor->zero_points = tn_pool_take(&tensor->graph->pool, (size_t)count * sizeof *tensor->zero_points);
  if (tensor->scales == NULL || tensor->zero_points == NULL) return -1;
  for (int32_t i = 0; i < count; i++) {
    const int32_t row = word_at(r, begin + 4 * i), scale = field(r, row, 1);
    tensor->zero_points[i] = field(r, row, 0);
    memcpy(&tensor->scales[i], &scale, sizeof scale);
  }
  tensor->quant_count = count;
  return 0;
}

static int read_content(Reader *r, Tensor *tensor, int32_t buffers, int32_t number) {
  int64_t begin = 0;
  const int32_t count = vector_at(r, buffers, &begin, 1);
  if (number < 0 || number >= count) return 0;
  const int32_t row = word_at(r, begin + 4 * (int64_t)number), size = field(r, row, 0), at = field(r, row, 1);
  if (at == NO_OFFSET) return 0;
  if (size < 0 || at < 0 || (size_t)at + (size_t)size > r->size || size < tg_bytes(tensor)) return r->is_damaged = 1, 0;
  tensor->content = r->data + at;
  tensor->content_bytes = (size_t)tg_bytes(tensor);
  return 0;
}

static int read_tensor(Reader *r, Graph *graph, int32_t at, int32_t buffers) {
  int64_t begin = 0;
  size_t length;
  const char *name = text_at(r, field(r, at, 3), &length);
  Tensor *tensor = tg_new_tensor(graph, length > 0 ? name : NULL, length, field(r, at, 7));
  if (tensor == NULL) return -1;
  tensor->kind = field(r, at, 6);
  tensor->layout = field(r, at, 5);
  tensor->dim_count = vector_at(r, field(r, at, 2), &begin, 1);
  if (tensor->dim_count > MAX_SHAPE_DIM_NUM) return r->is_damaged = 1, tensor->dim_count = 0, 0;
  for (int i = 0; i < tensor->dim_count; i++) tensor->dims[i] = word_at(r, begin + 4 * i);
  if (read_quantisation(r, tensor, field(r, at, 4)) != 0) return -1;
  return tensor->kind == TENSOR_TYPE_CONST ? read_content(r, tensor, buffers, field(r, at, 1)) : 0;
}

/* ------------------------------------------------------------------------------------------------------------ nodes */

static int read_list(Reader *r, Node *node, Parameter *parameter, int32_t at, int width) {
  int64_t begin = 0;
  parameter->count = vector_at(r, at, &begin, width);
  const size_t words = (size_t)parameter->count * (size_t)width;
  if ((parameter->list = tn_pool_take(&node->graph->pool, 4 * words)) == NULL) return -1;
  for (size_t i = 0; i < words; i++) parameter->list[i] = word_at(r, begin + 4 * (int64_t)i);
  return 0;
}

/* Parameters that a file of an older version lacks are 0. */
static int read_parameters(Reader *r, Node *node, int32_t at, int32_t operator_at) {
  Field wanted;
  int number = 0;
  const int64_t end = operator_at > at ? operator_at : (int64_t)r->size;
  if (tg_set_defaults(node) != 0) return -1;
  for (const char *fields = node->op->fields; tg_next_field(&fields, &wanted); number++) {
    Parameter *parameter = &node->parameters[number];
    const int is_inside = at != NO_OFFSET && (int64_t)at + 4 * number + 4 <= end;
    const int32_t word = is_inside ? field(r, at, number) : 0;
    const int is_list = wanted.kind == 'I' || wanted.kind == 'F' || wanted.kind == 'A';
    if (!is_list) parameter->word = word;
    else if (read_list(r, node, parameter, word, wanted.kind == 'A' ? 4 : 1) != 0) return -1;
  }
  return 0;
}

static int connect_all(Reader *r, Node *node, int32_t at, int is_output) {
  int64_t begin = 0;
  Graph *graph = node->graph;
  const int32_t count = vector_at(r, at, &begin, 1);
  for (int32_t i = 0; i < count; i++) {
    const int32_t number = word_at(r, begin + 4 * i);
    if (number < 0 || number >= graph->tensor_count) return r->is_damaged = 1, 0;
    Tensor *tensor = graph->tensors[number];
    const int status = is_output ? tg_connect(graph, &node->outputs, &node->output_count, i, tensor)
                                 : tg_connect(graph, &node->inputs, &node->input_count, i, tensor);
    if (status != 0) return -1;
    if (is_output) tensor->producer = node;
    else tensor->consumer_count++;
  }
  return 0;
}

static int read_node(Reader *r, Graph *graph, int32_t at) {
  size_t length;
  const int32_t operator_at = field(r, at, 3);
  const char *name = text_at(r, field(r, at, 4), &length);
  Node *node = tg_new_node(graph, name, length, field(r, operator_at, 1));
  if (node == NULL) return -1;
  if (node->op != NULL && read_parameters(r, node, field(r, operator_at, 2), operator_at) != 0) return -1;
  if (connect_all(r, node, field(r, at, 1), 0) != 0) return -1;
  return connect_all(r, node, field(r, at, 2), 1);
}

static int read_ends(Reader *r, Graph *graph, int32_t at, Node ***list, int *count) {
  int64_t begin = 0;
  const int32_t entries = vector_at(r, at, &begin, 1);
  if ((*list = tn_pool_take(&graph->pool, (size_t)entries * sizeof **list)) == NULL) return -1;
  for (int32_t i = 0; i < entries; i++) {
    const int32_t number = word_at(r, begin + 4 * i);
    if (number < 0 || number >= graph->node_count) return r->is_damaged = 1, 0;
    (*list)[(*count)++] = graph->nodes[number];
  }
  return 0;
}

static int read_graph(Reader *r, Graph *graph, int32_t at) {
  int64_t begin = 0;
  int32_t count = vector_at(r, field(r, at, 6), &begin, 1);
  graph->layout = field(r, at, 1);
  for (int32_t i = 0; i < count && !r->is_damaged; i++)
    if (read_tensor(r, graph, word_at(r, begin + 4 * i), field(r, at, 7)) != 0) return -1;
  count = vector_at(r, field(r, at, 5), &begin, 1);
  for (int32_t i = 0; i < count && !r->is_damaged; i++)
    if (read_node(r, graph, word_at(r, begin + 4 * i)) != 0) return -1;
  if (read_ends(r, graph, field(r, at, 3), &graph->inputs, &graph->input_count) != 0) return -1;
  return read_ends(r, graph, field(r, at, 4), &graph->outputs, &graph->output_count);
}

int tg_read_tmfile(Graph *graph) {
  Reader r = {graph->model.data, graph->model.size, 0};
  int64_t begin = 0;
  const char *path = graph->path != NULL ? graph->path : "the model in memory";
  const int32_t graphs = field(&r, word_at(&r, 8), 2), count = vector_at(&r, graphs, &begin, 1);
  if (count != 1 || r.is_damaged) return tg_error("%s holds %d graphs: the file is damaged", path, count);
  if (read_graph(&r, graph, word_at(&r, begin)) != 0) return tg_error("%s: no memory for its graph", path);
  if (r.is_damaged || graph->node_count == 0)
    return tg_error("%s is damaged or truncated: a table points outside of it", path);
  return 0;
}
