// A device plug-in: the Arm Compute Library takes convolutions, pooling and matrix products in floats.
//
//     aarch64-linux-gnu-g++ -std=c++14 -shared -fPIC -Isdk/include arm_compute_device.cpp -larm_compute -larm_compute_core
//         -o arm_compute_device.so
//
// The compiler, which asks what the device runs, is on another machine, mostly.  It loads the same plug-in, compiled for its
// own machine without the library:
//
//     c++ -std=c++14 -shared -fPIC -Isdk/include -DWITHOUT_ARM_COMPUTE arm_compute_device.cpp -o arm_compute_device_here.so
//     tenon compile model.onnx --target aarch64 --offload ./arm_compute_device_here.so -o model.tenon

#include "onnx_part.hpp"
#include "tenon_device.h"

#include <algorithm>
#include <functional>
#include <memory>

using namespace onnx_part;

namespace {

std::string message;

const char *const operators[] = {"Add",  "AveragePool", "Conv",    "Flatten", "Gemm",
                                 "MatMul", "MaxPool",   "GlobalAveragePool", "Relu"};

// The function of a layer, in ONNX's terms; null where the library is not there.
struct Layer {
  virtual ~Layer() = default;
  virtual void run() = 0;
};

// Extents and attributes of a window over the last two axes, and the shape of what it gives.
struct Window {
  int64_t kernel[2], strides[2], dilations[2], pads[4]; // top, left, bottom, right
  bool ceil;

  Window(const Node &node, const Dims &extents) {
    if (!node.text("auto_pad").empty() && node.text("auto_pad") != "NOTSET") throw Refusal("takes explicit pads alone");
    const Dims s = node.integers("strides", {1, 1}), d = node.integers("dilations", {1, 1}),
               p = node.integers("pads", {0, 0, 0, 0});
    if (extents.size() != 2 || s.size() != 2 || d.size() != 2 || p.size() != 4) throw Refusal("takes images alone");
    for (int i = 0; i < 2; i++) kernel[i] = extents[i], strides[i] = s[i], dilations[i] = d[i];
    std::copy(p.begin(), p.end(), pads);
    ceil = node.integer("ceil_mode", 0) != 0;
  }
  int64_t extent(int axis, int64_t input) const {
    const int64_t room = input + pads[axis] + pads[axis + 2] - dilations[axis] * (kernel[axis] - 1) - 1;
    return (room + (ceil ? strides[axis] - 1 : 0)) / strides[axis] + 1;
  }
  Dims output(const Dims &input, int64_t channels) const {
    return {input[0], channels, extent(0, input[2]), extent(1, input[3])};
  }
};

} // namespace

#ifndef WITHOUT_ARM_COMPUTE
#include "arm_compute/core/Types.h"
#include "arm_compute/runtime/NEON/NEFunctions.h"
#include "arm_compute/runtime/Scheduler.h"
#include "arm_compute/runtime/Tensor.h"

namespace acl = arm_compute;

namespace {

acl::TensorShape shape_of(const Dims &dims) {
  acl::TensorShape shape;
  for (size_t i = 0; i < dims.size(); i++) shape.set(i, static_cast<size_t>(dims[dims.size() - 1 - i]));
  return shape;
}

// Calls `row` with each row of a tensor, which may be padded, and the dense elements that it stands for.
void each_row(acl::Tensor &tensor, float *dense, const std::function<void(float *, float *, size_t)> &row) {
  const acl::TensorShape &shape = tensor.info()->tensor_shape();
  const size_t width = shape[0], rows = shape.total_size() / width;
  acl::Coordinates at;
  for (size_t number = 0; number < rows; number++) {
    size_t rest = number;
    for (size_t axis = 1; axis < shape.num_dimensions(); rest /= shape[axis++]) at.set(axis, static_cast<int>(rest % shape[axis]));
    row(reinterpret_cast<float *>(tensor.ptr_to_element(at)), dense + number * width, width);
  }
}

void fill(acl::Tensor &tensor, const float *dense) {
  each_row(tensor, const_cast<float *>(dense), [](float *to, float *from, size_t count) { std::copy_n(from, count, to); });
}

void read(acl::Tensor &tensor, float *dense) {
  each_row(tensor, dense, [](float *from, float *to, size_t count) { std::copy_n(from, count, to); });
}

void require(const acl::Status &status) {
  if (!status) throw Refusal("cannot run a layer: " + status.error_description());
}

class Prepared {
 public:
  explicit Prepared(const Part &part) : part_(part) {
    for (const Port &port : part.inputs) add(port.name, port.dims);
    for (const Node &node : part.nodes) configure(node);
    for (auto &made : tensors_) made.second->allocator()->allocate(); // layers pad the tensors that they read
    for (auto &constant : contents_) fill(*tensors_.at(constant.first), constant.second.data());
  }
  void run(const void *const *inputs, void *const *outputs) {
    for (size_t i = 0; i < part_.inputs.size(); i++)
      fill(*tensors_.at(part_.inputs[i].name), static_cast<const float *>(inputs[i]));
    for (const auto &layer : layers_) layer->run();
    for (size_t i = 0; i < part_.outputs.size(); i++)
      read(*tensors_.at(part_.outputs[i].name), static_cast<float *>(outputs[i]));
  }

 private:
  acl::Tensor *add(const std::string &name, const Dims &dims) {
    std::unique_ptr<acl::Tensor> made(new acl::Tensor);
    made->allocator()->init(acl::TensorInfo(shape_of(dims), 1, acl::DataType::F32));
    dims_[name] = dims;
    return (tensors_[name] = std::move(made)).get();
  }
  acl::Tensor *result(const Node &node, const Dims &dims) { return add(node.outputs.at(0), dims); }
  acl::Tensor *operand(const Node &node, size_t number) {
    const auto found = tensors_.find(node.inputs.at(number));
    if (found == tensors_.end()) throw Refusal("takes " + node.op + " of results alone");
    return found->second.get();
  }
  const Dims &dims(const Node &node, size_t number) { return dims_.at(node.inputs.at(number)); }
  const Constant &constant(const Node &node, size_t number) {
    const auto found = part_.constants.find(node.inputs.at(number));
    if (found == part_.constants.end()) throw Refusal("takes " + node.op + " with constant weights alone");
    return found->second;
  }
  // A constant as a tensor, with other extents and elements if need be.
  acl::Tensor *constant_tensor(const std::string &name, const Dims &dims, const float *from) {
    contents_[name] = std::vector<float>(from, from + elements(dims));
    return add(name, dims);
  }

  template <class Function, class... Arguments> void layer(Arguments &&...arguments) {
    std::unique_ptr<Runnable<Function>> made(new Runnable<Function>);
    made->function.configure(std::forward<Arguments>(arguments)...);
    layers_.push_back(std::move(made));
  }
  template <class Function> struct Runnable : Layer {
    Function function;
    void run() override { function.run(); }
  };

  static acl::PadStrideInfo pads_of(const Window &w) {
    return acl::PadStrideInfo(w.strides[1], w.strides[0], w.pads[1], w.pads[3], w.pads[0], w.pads[2],
                              w.ceil ? acl::DimensionRoundingType::CEIL : acl::DimensionRoundingType::FLOOR);
  }

  void configure(const Node &node) {
    if (node.op == "Conv") return convolution(node);
    if (node.op == "Gemm" || node.op == "MatMul") return product(node);
    if (node.op == "MaxPool" || node.op == "AveragePool" || node.op == "GlobalAveragePool") return pooling(node);
    if (node.op == "Relu") {
      const acl::ActivationLayerInfo relu(acl::ActivationLayerInfo::ActivationFunction::RELU);
      return layer<acl::NEActivationLayer>(operand(node, 0), result(node, dims(node, 0)), relu);
    }
    if (node.op == "Flatten" && node.integer("axis", 1) == 1) {
      const Dims from = dims(node, 0);
      return layer<acl::NEReshapeLayer>(operand(node, 0), result(node, {from.at(0), elements(from) / from.at(0)}));
    }
    if (node.op == "Add" && dims(node, 0) == dims(node, 1))
      return layer<acl::NEArithmeticAddition>(operand(node, 0), operand(node, 1), result(node, dims(node, 0)),
                                              acl::ConvertPolicy::SATURATE);
    throw Refusal("does not run this " + node.op);
  }

  void convolution(const Node &node) {
    const Constant &weights = constant(node, 1);
    const Dims from = dims(node, 0), filter = weights.dims;
    if (from.size() != 4 || filter.size() != 4) throw Refusal("convolves images alone");
    const int64_t groups = node.integer("group", 1), channels = filter[0];
    const Window window(node, {filter[2], filter[3]});
    const bool is_depthwise = groups > 1 && groups == from[1] && filter[1] == 1;
    if (groups > 1 && !is_depthwise) throw Refusal("does not convolve in groups");
    const Dims shape = is_depthwise ? Dims{1, filter[0], filter[2], filter[3]} : filter;
    acl::Tensor *w = constant_tensor(node.inputs[1] + " of " + node.outputs[0], shape, weights.floats());
    acl::Tensor *bias = nullptr;
    if (node.has(2)) bias = constant_tensor(node.inputs[2] + " of " + node.outputs[0], {channels}, constant(node, 2).floats());
    acl::Tensor *x = operand(node, 0), *y = result(node, window.output(from, channels));
    const acl::Size2D dilation(window.dilations[1], window.dilations[0]);
    const acl::PadStrideInfo pads = pads_of(window);
    const acl::ITensorInfo *b = bias != nullptr ? bias->info() : nullptr;
    if (is_depthwise) {
      const unsigned multiplier = static_cast<unsigned>(channels / groups);
      require(acl::NEDepthwiseConvolutionLayer::validate(x->info(), w->info(), b, y->info(), pads, multiplier, {}, dilation));
      return layer<acl::NEDepthwiseConvolutionLayer>(x, w, bias, y, pads, multiplier, acl::ActivationLayerInfo(), dilation);
    }
    require(acl::NEConvolutionLayer::validate(x->info(), w->info(), b, y->info(), pads, acl::WeightsInfo(), dilation));
    layer<acl::NEConvolutionLayer>(x, w, bias, y, pads, acl::WeightsInfo(), dilation);
  }

  void product(const Node &node) {
    const Constant &weights = constant(node, 1);
    const Dims from = dims(node, 0);
    const bool is_turned = node.integer("transB", 0) != 0;
    if (from.size() != 2 || weights.dims.size() != 2 || node.integer("transA", 0) != 0 || node.number("alpha", 1) != 1 ||
        node.number("beta", 1) != 1)
      throw Refusal("multiplies rows by constant matrices alone");
    const int64_t inner = from[1], outer = weights.dims[is_turned ? 0 : 1];
    std::vector<float> turned(weights.floats(), weights.floats() + elements(weights.dims));
    for (int64_t n = 0; !is_turned && n < outer; n++)
      for (int64_t k = 0; k < inner; k++) turned[n * inner + k] = weights.floats()[k * outer + n];
    acl::Tensor *w = constant_tensor(node.inputs[1] + " of " + node.outputs[0], {outer, inner}, turned.data());
    acl::Tensor *bias = nullptr;
    if (node.has(2)) {
      if (elements(constant(node, 2).dims) != outer) throw Refusal("adds a bias for each column alone");
      bias = constant_tensor(node.inputs[2] + " of " + node.outputs[0], {outer}, constant(node, 2).floats());
    }
    acl::Tensor *x = operand(node, 0), *y = result(node, {from[0], outer});
    require(acl::NEFullyConnectedLayer::validate(x->info(), w->info(), bias != nullptr ? bias->info() : nullptr, y->info()));
    layer<acl::NEFullyConnectedLayer>(x, w, bias, y);
  }

  void pooling(const Node &node) {
    const Dims from = dims(node, 0);
    const bool is_global = node.op == "GlobalAveragePool", is_maximum = node.op == "MaxPool";
    if (from.size() != 4 || node.outputs.size() > 1) throw Refusal("pools images alone");
    const Window window(node, is_global ? Dims{from[2], from[3]} : node.integers("kernel_shape", {}));
    if (window.dilations[0] != 1 || window.dilations[1] != 1) throw Refusal("does not dilate windows of pooling");
    const acl::PoolingLayerInfo info(is_maximum ? acl::PoolingType::MAX : acl::PoolingType::AVG,
                                     acl::Size2D(window.kernel[1], window.kernel[0]), acl::DataLayout::NCHW, pads_of(window),
                                     node.integer("count_include_pad", 0) == 0);
    acl::Tensor *x = operand(node, 0), *y = result(node, window.output(from, from[1]));
    require(acl::NEPoolingLayer::validate(x->info(), y->info(), info));
    layer<acl::NEPoolingLayer>(x, y, info);
  }

  Part part_;
  std::map<std::string, std::unique_ptr<acl::Tensor>> tensors_;
  std::map<std::string, Dims> dims_;
  std::map<std::string, std::vector<float>> contents_;
  std::vector<std::unique_ptr<Layer>> layers_;
};

const char *describe(void *) { return "Arm Compute Library, Neon"; }

} // namespace

#else

namespace {

// Takes every part that it can read: the machine with the library has the last word.
struct Prepared {
  explicit Prepared(const Part &) {}
  void run(const void *const *, void *const *) { throw Refusal("is on another machine"); }
};

const char *describe(void *) { return "Arm Compute Library, on another machine"; }

} // namespace

#endif

namespace {

int supports(void *, const TenonDeviceNode *node) {
  for (int i = 0; i < node->input_count + node->output_count; i++)
    if (std::strcmp(node->types[i], "f32") != 0 && node->types[i][0] != 0) return 0;
  for (const char *taken : operators)
    if (std::strcmp(node->op, taken) == 0) return 1;
  return 0;
}

int prerun(void *, const void *onnx, size_t bytes, void **part) try {
  *part = new Prepared(onnx_part::read(onnx, bytes));
  return 0;
} catch (const std::exception &error) {
  return message = error.what(), 1;
}

int run(void *part, const void *const *inputs, void *const *outputs) try {
  static_cast<Prepared *>(part)->run(inputs, outputs);
  return 0;
} catch (const std::exception &error) {
  return message = error.what(), 1;
}

void postrun(void *part) { delete static_cast<Prepared *>(part); }
void release(void *) {}
const char *error(void *) { return message.c_str(); }

const TenonDevice device = {sizeof(TenonDevice), TENON_DEVICE_ABI, "acl", nullptr, describe, supports, prerun, run,
                            postrun,             release,          error, nullptr, nullptr,  nullptr};

} // namespace

extern "C" const TenonDevice *tenon_plugin_device(const char *, const char **) { return &device; }
