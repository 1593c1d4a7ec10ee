/* A program for Tengine's C API, in the manner of its classification examples for int8 and uint8: integers in and out by
   the scale and zero point of the tensors.  Reads floats from standard input, writes the integers of the output, then
   the floats that they stand for. */

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "require.h"
#include "tengine/c_api.h"

/* Arguments: model, "int8" or "uint8", and the dimensions of the input. */
int main(int count, char **words) {
  int dims[MAX_SHAPE_DIM_NUM], elements = 1, zero_point = -1;
  float scale = 0;
  const int rank = count - 3;
  REQUIRE(rank > 0 && rank <= MAX_SHAPE_DIM_NUM);
  for (int i = 0; i < rank; i++) elements *= dims[i] = atoi(words[3 + i]);
  const int is_signed = words[2][0] == 'i', type = is_signed ? TENGINE_DT_INT8 : TENGINE_DT_UINT8;
  const float least = is_signed ? -127 : 0, most = is_signed ? 127 : 255;
  struct options options;
  options.num_thread = 1;
  options.cluster = TENGINE_CLUSTER_ALL;
  options.precision = is_signed ? TENGINE_MODE_INT8 : TENGINE_MODE_UINT8;
  options.affinity = 0;

  REQUIRE(init_tengine() == 0);
  graph_t graph = create_graph(NULL, "tengine", words[1]);
  REQUIRE(graph != NULL);
  tensor_t input = get_graph_input_tensor(graph, 0, 0);
  REQUIRE(input != NULL && get_tensor_data_type(input) == type);
  REQUIRE(set_tensor_shape(input, dims, rank) == 0);
  REQUIRE(get_tensor_buffer_size(input) == elements);
  float *image = malloc((size_t)elements * sizeof *image);
  uint8_t *data = malloc((size_t)elements);
  REQUIRE(image != NULL && data != NULL);
  REQUIRE(set_tensor_buffer(input, data, elements) == 0);
  REQUIRE(prerun_graph_multithread(graph, options) == 0);
  REQUIRE(get_tensor_quant_param(input, &scale, &zero_point, 1) == 1 && scale > 0);
  REQUIRE(fread(image, sizeof *image, (size_t)elements, stdin) == (size_t)elements);
  for (int i = 0; i < elements; i++)
    data[i] = (uint8_t)(int)fminf(fmaxf(roundf(image[i] / scale + (float)zero_point), least), most);
  REQUIRE(run_graph(graph, 1) == 0);

  tensor_t output = get_graph_output_tensor(graph, 0, 0);
  const uint8_t *content = get_tensor_buffer(output);
  const int size = get_tensor_buffer_size(output);
  REQUIRE(content != NULL && size > 0 && get_tensor_data_type(output) == type);
  REQUIRE(get_tensor_quant_param(output, &scale, &zero_point, 1) == 1 && scale > 0);
  fwrite(content, 1, (size_t)size, stdout);
  for (int i = 0; i < size; i++) {
    const int stored = is_signed ? (int8_t)content[i] : content[i];
    const float real = (float)(stored - zero_point) * scale;
    fwrite(&real, sizeof real, 1, stdout);
  }
  free(image);
  free(data);
  REQUIRE(postrun_graph(graph) == 0 && destroy_graph(graph) == 0);
  release_tengine();
  return 0;
}
