/* A program for Tengine's C API, in the manner of its classification example: the model from a file or from memory, set
   shape and buffer before prerun, fill the buffer after it.  Writes the output to standard output. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "require.h"
#include "tengine/c_api.h"

static graph_t created(const char *path, int in_memory) {
  static char content[1 << 22];
  if (!in_memory) return create_graph(NULL, "tengine", path);
  FILE *file = fopen(path, "rb");
  if (file == NULL) return NULL;
  const int size = (int)fread(content, 1, sizeof content, file);
  fclose(file);
  graph_t graph = create_graph(NULL, "tengine:m", content, size);
  memset(content, 0, sizeof content); /* it is no longer needed */
  return graph;
}

/* Arguments: model, "file" or "memory", and the dimensions of the input. */
int main(int count, char **words) {
  int dims[MAX_SHAPE_DIM_NUM], again[MAX_SHAPE_DIM_NUM], elements = 1, zero_point;
  float scale;
  const int rank = count - 3;
  REQUIRE(rank > 0 && rank <= MAX_SHAPE_DIM_NUM);
  for (int i = 0; i < rank; i++) elements *= dims[i] = atoi(words[3 + i]);
  const int bytes = elements * (int)sizeof(float);
  struct options options;
  options.num_thread = 2;
  options.cluster = TENGINE_CLUSTER_ALL;
  options.precision = TENGINE_MODE_FP32;
  options.affinity = 255;
  REQUIRE(sizeof options == 24);

  REQUIRE(init_tengine() == 0);
  fprintf(stderr, "tengine-lite library version: %s\n", get_tengine_version());
  graph_t graph = created(words[1], strcmp(words[2], "memory") == 0);
  REQUIRE(graph != NULL);
  tensor_t input = get_graph_input_tensor(graph, 0, 0), output = get_graph_output_tensor(graph, 0, 0);
  REQUIRE(input != NULL && output != NULL);
  REQUIRE(run_graph(graph, 1) == -1); /* before prerun */
  REQUIRE(set_tensor_shape(input, dims, rank) == 0);
  REQUIRE(get_tensor_shape(input, again, rank - 1) == -1);
  REQUIRE(get_tensor_shape(input, again, MAX_SHAPE_DIM_NUM) == rank && memcmp(dims, again, sizeof(int) * (size_t)rank) == 0);
  REQUIRE(get_tensor_buffer_size(input) == bytes);
  float *data = malloc((size_t)bytes);
  REQUIRE(set_tensor_buffer(input, data, bytes - 1) == -1);
  REQUIRE(set_tensor_buffer(input, data, bytes) == 0);
  REQUIRE(prerun_graph_multithread(graph, options) == 0);
  REQUIRE(get_tensor_buffer(output) == NULL); /* there is one after a run */
  REQUIRE(fread(data, sizeof(float), (size_t)elements, stdin) == (size_t)elements);
  REQUIRE(run_graph(graph, 1) == 0);
  REQUIRE(run_graph(graph, 1) == 0);
  REQUIRE(get_tensor_quant_param(output, &scale, &zero_point, 1) == 0); /* not quantised */
  REQUIRE(get_graph_tensor(graph, get_tensor_name(output)) == output);
  REQUIRE(get_graph_output_node_number(graph) == 1 && get_tensor_data_type(output) == TENGINE_DT_FP32);
  const int size = get_tensor_buffer_size(output);
  const void *result = get_tensor_buffer(output);
  REQUIRE(result != NULL && size > 0);
  fwrite(result, 1, (size_t)size, stdout);
  release_graph_tensor(input);
  release_graph_tensor(output);
  REQUIRE(postrun_graph(graph) == 0 && postrun_graph(graph) == -1);
  REQUIRE(destroy_graph(graph) == 0 && destroy_graph(graph) == -1);
  REQUIRE(get_tensor_buffer(output) == NULL && get_tensor_shape(input, again, 8) == -1); /* they went with the graph */
  release_tengine();
  free(data);
  return 0;
}
