// The C++ API of Tengine on the digits network: model, then the input on standard input.

#include <cstdio>

#include "tengine_cpp_api.h"

int main(int count, char **words) {
  tengine::Net early, net;
  tengine::Tensor input(1, 1, 8, 8), output;
  if (early.load_model(nullptr, "tengine", words[1]) != -1 || init_tengine() != 0) return 10;
  if (net.set_device("") != 0 || input.total() != 64 * sizeof(float)) return 11;
  if (count != 2 || net.run() != -1 || net.load_model(nullptr, "tengine", words[1]) != 0) return 1;
  if (net.input_shape("image", 1, 1, 8, 8) != 0 || net.input_shape("picture", 1, 1, 8, 8) != -1) return 2;
  net.opt.num_thread = 2;
  if (net.extract_tensor("probabilities", output) != -1) return 3;  // before a run
  if (std::fread(input.data, input.elem_size, 64, stdin) != 64) return 4;
  const void *memory = input.data;
  const float first = *static_cast<const float *>(memory);
  input.create(1, 1, 8, 8);
  if (input.data != memory || *static_cast<const float *>(memory) != first) return 12;  // the same shape
  if (net.input_tensor("image", input) != 0 || net.run() != 0 || !net.b_preruned) return 5;
  float *own = nullptr;
  int elements = 0, dims[4];
  const int rank = get_tensor_shape(get_graph_output_tensor(net.graph, 0, 0), dims, 4);
  if (net.extract_tensor("probabilities", output) != (rank == 4 ? 0 : -1)) return 6;
  if (net.extract_tensor("probabilities", own, elements) != 0 || elements != 10) return 7;
  if (net.extract_tensor("image", output) != 0 || output.total() != 256 || output.h != 8) return 8;
  const tengine::Tensor copy = output.clone(), same = output;
  output.fill(0.f);
  if (static_cast<const float *>(same.data)[3] != 0 || std::memcmp(input.data, copy.data, 256) != 0) return 9;
  std::fwrite(own, sizeof *own, static_cast<std::size_t>(elements), stdout);
  return 0;
}
