// The C++ API of Tengine on the digits network: model, then the input on standard input.

#include <cstdio>

#include "tengine_cpp_api.h"

int main(int count, char **words) {
  tengine::Net net;
  tengine::Tensor input(1, 1, 8, 8), output;
  if (count != 2 || net.run() != -1 || net.load_model(nullptr, "tengine", words[1]) != 0) return 1;
  if (net.input_shape("image", 1, 1, 8, 8) != 0 || net.input_shape("picture", 1, 1, 8, 8) != -1) return 2;
  net.opt.num_thread = 2;
  if (net.extract_tensor("probabilities", output) != -1) return 3;  // before a run
  if (std::fread(input.data, input.elem_size, input.total(), stdin) != 64) return 4;
  if (net.input_tensor("image", input) != 0 || net.run() != 0 || !net.b_preruned) return 5;
  float *own = nullptr;
  int bytes = 0;
  if (net.extract_tensor("probabilities", output) != 0 || net.extract_tensor("probabilities", own, bytes) != 0) return 6;
  const tengine::Tensor copy = output.clone(), same = output;
  if (output.n != 1 || output.c != 10 || output.h != 1 || output.total() != 10 || bytes != 40) return 7;
  output.fill(0.f);
  if (static_cast<const float *>(same.data)[3] != 0 || std::memcmp(own, copy.data, 40) != 0) return 8;
  std::fwrite(copy.data, copy.elem_size, copy.total(), stdout);
  return 0;
}
