/* The C++ API of tengine-lite 1.0 to 1.3, tengine::Net and tengine::Tensor, over its C API (C++11, header only). */

#ifndef TENGINE_CPP_API_H
#define TENGINE_CPP_API_H

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tengine_c_api.h"

namespace tengine {

/* An array of 2 to 4 dimensions.  Copies share their memory; clone() has its own. */
class Tensor {
 public:
  Tensor() = default;
  Tensor(int w_, int h_, std::size_t elem = 4u, std::uint8_t layout_ = TENGINE_LAYOUT_NCHW) { create(w_, h_, elem, layout_); }
  Tensor(int n_, int h_, int w_, std::size_t elem = 4u, std::uint8_t layout_ = TENGINE_LAYOUT_NCHW) {
    create(n_, h_, w_, elem, layout_);
  }
  Tensor(int n_, int c_, int h_, int w_, std::size_t elem = 4u, std::uint8_t layout_ = TENGINE_LAYOUT_NCHW) {
    create(n_, c_, h_, w_, elem, layout_);
  }

  void create(int n_, int w_, std::size_t elem = 4u, std::uint8_t layout_ = TENGINE_LAYOUT_NCHW) {
    set(2, n_, 1, 1, w_, elem, layout_);
  }
  void create(int n_, int h_, int w_, std::size_t elem = 4u, std::uint8_t layout_ = TENGINE_LAYOUT_NCHW) {
    set(3, n_, 1, h_, w_, elem, layout_);
  }
  void create(int n_, int c_, int h_, int w_, std::size_t elem = 4u, std::uint8_t layout_ = TENGINE_LAYOUT_NCHW) {
    set(4, n_, c_, h_, w_, elem, layout_);
  }

  void fill(float value) const { fill<float>(value); }
  template <typename T>
  void fill(T value) const {
    T *to = static_cast<T *>(data);
    for (int i = 0; i < elem_num; i++) to[i] = value;
  }
  Tensor clone() const {
    Tensor copy;
    if (empty()) return copy;
    copy.set(dim_num, n, c, h, w, elem_size, layout);
    copy.scales = scales;
    copy.zero_points = zero_points;
    std::memcpy(copy.data, data, total());
    return copy;
  }
  bool empty() const { return data == nullptr || total() == 0; }
  /* In bytes. */
  std::size_t total() const { return static_cast<std::size_t>(elem_num) * elem_size; }

  std::uint8_t dim_num = 0, layout = TENGINE_LAYOUT_NCHW;
  std::size_t elem_size = 0;
  int elem_num = 0;
  void *data = nullptr;
  int n = 0, c = 0, h = 0, w = 0;
  std::vector<float> scales, zero_points;

 private:
  /* A tensor that has this shape already keeps its memory, and what is in it. */
  void set(int rank, int n_, int c_, int h_, int w_, std::size_t elem, std::uint8_t layout_) {
    const bool is_same = dim_num == rank && n == n_ && c == c_ && h == h_ && w == w_;
    if (data != nullptr && is_same && elem_size == elem && layout == layout_) return;
    dim_num = static_cast<std::uint8_t>(rank);
    layout = layout_;
    elem_size = elem;
    n = n_, c = c_, h = h_, w = w_;
    elem_num = n * c * h * w;
    memory_.reset(std::calloc(static_cast<std::size_t>(elem_num) + 1, elem), std::free);
    data = memory_.get();
  }

  std::shared_ptr<void> memory_;
};

/* A network; functions return 0, or -1 with a message. */
class Net {
 public:
  Net() = default;
  Net(const Net &) = delete;
  Net &operator=(const Net &) = delete;
  ~Net() {
    if (graph == nullptr) return;
    if (b_preruned) postrun_graph(graph);
    destroy_graph(graph);
  }

  /* As create_graph; of a model in memory (":m"), `size` are its bytes. */
  int load_model(context_t context, const char *model_format, const char *model_file, int size = 0) {
    graph = create_graph(context, model_format, model_file, size);
    return graph != nullptr ? 0 : -1;
  }
  /* An empty name is the device that the network has. */
  int set_device(const std::string &device) const { return device.empty() ? 0 : set_graph_device(graph, device.c_str()); }
  int input_shape(const std::string &name, int n, int c, int h, int w) const {
    const int dims[4] = {n, c, h, w};
    return set_tensor_shape(named(name), dims, 4);
  }
  /* The tensor's memory is read by every run. */
  int input_tensor(const std::string &name, Tensor &input) const {
    const tensor_t tensor = named(name);
    const int dims[4] = {input.n, input.c, input.h, input.w};
    if (tensor == nullptr || input.empty() || (!b_preruned && set_tensor_shape(tensor, dims, 4) != 0)) return -1;
    return set_tensor_buffer(tensor, input.data, static_cast<int>(input.total()));
  }
  int input_tensor(const std::string &name, const float *buffer, int bytes) const {
    return set_tensor_buffer(named(name), const_cast<float *>(buffer), bytes);
  }
  /* Copies an output of 4 dimensions; others are refused, as in Tengine. */
  int extract_tensor(const std::string &name, Tensor &output) const {
    int dims[4] = {0, 0, 0, 0};
    const tensor_t tensor = named(name);
    const void *from = tensor != nullptr ? get_tensor_buffer(tensor) : nullptr;
    if (from == nullptr || get_tensor_shape(tensor, dims, 4) != 4) return -1;
    const std::size_t element = element_bytes(tensor);
    if (get_tensor_layout(tensor) == TENGINE_LAYOUT_NHWC)
      output.create(dims[0], dims[3], dims[1], dims[2], element, TENGINE_LAYOUT_NHWC);
    else
      output.create(dims[0], dims[1], dims[2], dims[3], element, TENGINE_LAYOUT_NCHW);
    std::memcpy(output.data, from, output.total());
    return 0;
  }
  /* The network's own memory, valid until the next run, and its number of elements. */
  int extract_tensor(const std::string &name, float *&buffer, int &elements) const {
    const tensor_t tensor = named(name);
    void *from = tensor != nullptr ? get_tensor_buffer(tensor) : nullptr;
    if (from == nullptr) return -1;
    buffer = static_cast<float *>(from);
    elements = get_tensor_buffer_size(tensor) / static_cast<int>(element_bytes(tensor));
    return 0;
  }
  /* Prepares the graph before the first run. */
  int run(int block = 1) {
    if (!b_preruned) {
      if (prerun_graph_multithread(graph, opt) != 0) return -1;
      b_preruned = true;
    }
    return run_graph(graph, block);
  }
  void dump() const { dump_graph(graph); }

  graph_t graph = nullptr;
  struct options opt = {1, TENGINE_CLUSTER_ALL, TENGINE_MODE_FP32, 0};
  bool b_preruned = false;

 private:
  static std::size_t element_bytes(tensor_t tensor) {
    switch (get_tensor_data_type(tensor)) {
      case TENGINE_DT_INT8:
      case TENGINE_DT_UINT8: return 1;
      case TENGINE_DT_FP16:
      case TENGINE_DT_INT16: return 2;
      default: return 4;
    }
  }
  /* By its name; an empty one is the first input. */
  tensor_t named(const std::string &name) const {
    return name.empty() ? get_graph_input_tensor(graph, 0, 0) : get_graph_tensor(graph, name.c_str());
  }
};

}  // namespace tengine

#endif
