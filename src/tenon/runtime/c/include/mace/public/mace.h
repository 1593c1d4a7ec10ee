// MACE's C++ API (C++11) over libtenon: programs that were written for MACE compile and run unchanged.
//
// The classes are inline over the C functions of libmace, so a program may use any C++ standard library.  Models are
// those of MACE (a graph .pb and weights .data, which Tenon compiles when they are opened first), bundles of Tenon
// (.tenon, in place of the graph), and models that were compiled to code (mace_engine_factory.h).  Wrong names, shapes
// and pointers are errors with a text, where MACE aborts.

#ifndef MACE_PUBLIC_MACE_H_
#define MACE_PUBLIC_MACE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "mace/public/mace_core.h"

#ifndef MACE_API
#define MACE_API
#endif

#ifndef MACE_DEPRECATED
#ifdef __GNUC__
#define MACE_DEPRECATED __attribute__((deprecated))
#else
#define MACE_DEPRECATED
#endif
#endif

namespace mace {

enum RuntimeType {
  RT_CPU = 0, RT_OPENCL = 2, RT_HEXAGON = 3, RT_HTA = 4, RT_APU = 5, RT_HTP = 6, RT_NONE = 65534, RT_MAX = 65535
};

enum DeviceType { CPU = 0, GPU = 2, HEXAGON = 3, HTA = 4, APU = 5, HTP = 6 };

enum IDataType {
  IDT_INVALID = 0, IDT_FLOAT = 1, IDT_UINT8 = 2, IDT_HALF = 3, IDT_INT32 = 4, IDT_FLOAT16 = 5, IDT_BFLOAT16 = 6,
  IDT_INT16 = 7, IDT_INT8 = 8, IDT_END
};

enum MemoryType { CPU_BUFFER = 0, GPU_BUFFER = 1, GPU_IMAGE = 2, MEMORY_NONE = 10000 };

enum class DataFormat { NONE = 0, NHWC = 1, NCHW = 2, HWOI = 100, OIHW = 101, HWIO = 102, OHWI = 103, AUTO = 1000 };

enum GPUPerfHint { PERF_DEFAULT = 0, PERF_LOW = 1, PERF_NORMAL = 2, PERF_HIGH = 3 };

enum GPUPriorityHint { PRIORITY_DEFAULT = 0, PRIORITY_LOW = 1, PRIORITY_NORMAL = 2, PRIORITY_HIGH = 3 };

enum CPUAffinityPolicy {
  AFFINITY_NONE = 0, AFFINITY_BIG_ONLY = 1, AFFINITY_LITTLE_ONLY = 2, AFFINITY_HIGH_PERFORMANCE = 3,
  AFFINITY_POWER_SAVE = 4
};

enum class OpenCLCacheReusePolicy { REUSE_NONE = 0, REUSE_SAME_GPU = 1 };

enum HexagonNNCornerType {
  HEXAGON_NN_CORNER_RELEASE, HEXAGON_NN_CORNER_TURBO, HEXAGON_NN_CORNER_NOMPLUS, HEXAGON_NN_CORNER_NOMINAL,
  HEXAGON_NN_CORNER_SVSPLUS, HEXAGON_NN_CORNER_SVS, HEXAGON_NN_CORNER_SVS2
};

enum HexagonPerformanceType {
  HEXAGON_BURST = 0, HEXAGON_SUSTAINED_HIGH_PERFORMANCE = 1, HEXAGON_HIGH_PERFORMANCE = 2, HEXAGON_BALANCED = 3,
  HEXAGON_LOW_BALANCED = 4, HEXAGON_POWER_SAVER = 5, HEXAGON_LOW_POWER_SAVER = 6, HEXAGON_HIGH_POWER_SAVER = 7,
  HEXAGON_SYSTEM_SETTINGS = 8, HEXAGON_INVALID = 0x7FFFFFFF
};

enum AcceleratorCachePolicy {
  ACCELERATOR_CACHE_NONE = 0, ACCELERATOR_CACHE_STORE = 1, ACCELERATOR_CACHE_LOAD = 2, APU_CACHE_LOAD_OR_STORE = 3
};

enum APUPreferenceHint {
  NEURON_PREFER_LOW_POWER = 0, NEURON_PREFER_FAST_SINGLE_ANSWER = 1, NEURON_PREFER_SUSTAINED_SPEED = 2
};

struct CallStats {
  int64_t start_micros, end_micros;
};

struct ConvPoolArgs {
  std::vector<int> strides;
  int padding_type;
  std::vector<int> paddings, dilations;
  std::vector<int64_t> kernels;
};

// A kernel call of a run; output_shape and args are empty: kernels are fused from several operators.
struct OperatorStats {
  std::string operator_name, type;
  std::vector<std::vector<int64_t>> output_shape;
  ConvPoolArgs args;
  CallStats stats;
};

class RunMetadata {
 public:
  std::vector<OperatorStats> op_stats;
};

struct PerformanceInfo {
  float exec_time;  // milliseconds, or relative; negative: unsupported
};

struct Capability {
  PerformanceInfo float32_performance, quantized8_performance;
  bool supported;
};

inline const char *MaceVersion() { return mace_core_version(); }

// The measured time of a fixed computation on the CPU; the status of other devices says that they are not supported.
inline Capability GetCapability(DeviceType device_type, float cpu_float32_exec_time = 1.f) {
  static_cast<void>(cpu_float32_exec_time);
  if (device_type == CPU) return Capability{{mace_core_cpu_time()}, {.6f}, true};
  if (device_type == HEXAGON) return Capability{{-1.f}, {1.f}, false};
  return Capability{{device_type == GPU ? 1.f : -1.f}, {-1.f}, false};
}

class MaceStatus {
 public:
  enum Code {
    MACE_SUCCESS = 0, MACE_INVALID_ARGS = 1, MACE_OUT_OF_RESOURCES = 2, MACE_UNSUPPORTED = 3, MACE_RUNTIME_ERROR = 4
  };

  MaceStatus() : code_(MACE_SUCCESS) {}
  MaceStatus(const Code code) : code_(code) {}  // NOLINT(runtime/explicit)
  MaceStatus(const Code code, const std::string &information) : code_(code), text_(information) {}

  Code code() const { return code_; }

  // The code in words, and ": " and the text if there is one.
  std::string information() const {
    static const char *const words[] = {"Success", "Invalid Arguments", "Out of resources", "Unsupported",
                                        "Runtime error"};
    return text_.empty() ? words[code_] : words[code_] + (": " + text_);
  }

  bool operator==(const MaceStatus &other) const { return code_ == other.code_; }
  bool operator!=(const MaceStatus &other) const { return code_ != other.code_; }

 private:
  Code code_;
  std::string text_;
};

// Compiled kernels are kept in the folder of that path, files of such a folder are read, and a file with sizes of work
// groups, or the content of such files; files that MACE wrote are about kernels of its own and are not used.
class OpenclContext {
 public:
  std::string storage_path;
  std::vector<std::string> binary_paths;
  std::string parameter_path;
  std::vector<unsigned char> binary, parameter;  // contents of files
  OpenCLCacheReusePolicy reuse_policy = OpenCLCacheReusePolicy::REUSE_SAME_GPU;
};
typedef OpenclContext GPUContext;

class GPUContextBuilder {
 public:
  GPUContextBuilder() {}
  GPUContextBuilder(const GPUContextBuilder &) = delete;
  GPUContextBuilder &operator=(const GPUContextBuilder &) = delete;

  GPUContextBuilder &SetOpenCLCacheFullPath(const std::string &path) { return SetStoragePath(path); }
  GPUContextBuilder &SetOpenCLCacheReusePolicy(const OpenCLCacheReusePolicy &policy) {
    context_.reuse_policy = policy;
    return *this;
  }
  GPUContextBuilder &SetStoragePath(const std::string &path) {
    context_.storage_path = path;
    return *this;
  }
  GPUContextBuilder &SetOpenCLBinaryPaths(const std::vector<std::string> &paths) {
    context_.binary_paths = paths;
    return *this;
  }
  // The bytes are copied.
  GPUContextBuilder &SetOpenCLBinary(const unsigned char *data, const size_t size) {
    context_.binary.assign(data, data + (data != nullptr ? size : 0));
    return *this;
  }
  GPUContextBuilder &SetOpenCLParameterPath(const std::string &path) {
    context_.parameter_path = path;
    return *this;
  }
  // The bytes are copied.
  GPUContextBuilder &SetOpenCLParameter(const unsigned char *data, const size_t size) {
    context_.parameter.assign(data, data + (data != nullptr ? size : 0));
    return *this;
  }

  std::shared_ptr<OpenclContext> Finalize() { return std::make_shared<OpenclContext>(context_); }

 private:
  OpenclContext context_;
};

class MaceEngineCfgImpl;

class MaceEngineConfig {
  friend class MaceEngine;

 public:
  MaceEngineConfig();
  explicit MaceEngineConfig(const DeviceType device_type);
  MaceEngineConfig(const MaceEngineConfig &) = delete;
  MaceEngineConfig &operator=(const MaceEngineConfig &) = delete;

  // RT_CPU, or RT_OPENCL (DeviceType GPU): without a GPU, and for other runtimes, the creation of an engine fails with
  // MACE_UNSUPPORTED.
  void SetRuntimeType(const RuntimeType runtime_type, const char *sub_graph_name = "default_graph");

  MaceStatus SetGPUContext(std::shared_ptr<OpenclContext> context);
  MaceStatus SetGPUHints(GPUPerfHint perf_hint, GPUPriorityHint priority_hint);

  // 0 or less: as many threads as there are cores of the policy's kind, and as the model was compiled for.
  MaceStatus SetCPUThreadPolicy(int num_threads_hint, CPUAffinityPolicy policy);

  // Are stored, and MACE_RUNTIME_ERROR, as in builds of MACE for the CPU.
  MaceStatus SetHexagonToUnsignedPD();
  MaceStatus SetHexagonPower(HexagonNNCornerType corner, bool dcvs_enable, int latency);
  MaceStatus SetQnnPerformance(HexagonPerformanceType type);
  MaceStatus SetAcceleratorCache(AcceleratorCachePolicy policy, const std::string &binary_file,
                                 const std::string &storage_file);
  MaceStatus SetAPUHints(uint8_t boost_hint, APUPreferenceHint preference_hint);

 private:
  std::shared_ptr<MaceEngineCfgImpl> impl_;
};

// An input or output: `data` has room for the elements of `shape`.  A copy refers to the same data.  NHWC and NCHW are
// transposed where the model has the other order; elements are converted where it has another type.
class MaceTensor {
 public:
  MaceTensor(const std::vector<int64_t> &shape, std::shared_ptr<void> data, const DataFormat format = DataFormat::NHWC,
             const IDataType data_type = IDT_FLOAT, const MemoryType mem_type = CPU_BUFFER)
      : shape_(shape), data_(data), format_(format), type_(data_type), memory_(mem_type) {}
  MaceTensor() : format_(DataFormat::NHWC), type_(IDT_FLOAT), memory_(CPU_BUFFER) {}

  // After a run that of the result.
  const std::vector<int64_t> &shape() const { return shape_; }
  const std::shared_ptr<float> data() const { return std::static_pointer_cast<float>(data_); }
  std::shared_ptr<float> data() { return std::static_pointer_cast<float>(data_); }
  template <typename T>
  const std::shared_ptr<T> data() const { return std::static_pointer_cast<T>(data_); }
  template <typename T>
  std::shared_ptr<T> data() { return std::static_pointer_cast<T>(data_); }
  DataFormat data_format() const { return format_; }
  IDataType data_type() const { return type_; }
  MemoryType memory_type() const { return memory_; }

 private:
  friend class MaceEngine;

  std::vector<int64_t> shape_;
  std::shared_ptr<void> data_;
  DataFormat format_;
  IDataType type_;
  MemoryType memory_;
};

// A model that is linked into the program, or its graph as bytes.
class MultiNetDef {
 public:
  explicit MultiNetDef(const TenonLinked &linked) : linked_(linked), is_linked_(true), graph_(nullptr), size_(0) {}
  MultiNetDef(const unsigned char *graph, size_t size) : linked_(), is_linked_(false), graph_(graph), size_(size) {}
  const TenonLinked *linked() const { return is_linked_ ? &linked_ : nullptr; }
  const unsigned char *graph() const { return graph_; }
  size_t graph_size() const { return size_; }

 private:
  TenonLinked linked_;
  bool is_linked_;
  const unsigned char *graph_;
  size_t size_;
};

class NetDef : public MultiNetDef {
 public:
  using MultiNetDef::MultiNetDef;
};

class MaceEngine {
 public:
  explicit MaceEngine(const MaceEngineConfig &config);
  ~MaceEngine() { mace_core_destroy(core_); }
  MaceEngine(const MaceEngine &) = delete;
  MaceEngine &operator=(const MaceEngine &) = delete;

  // The weights must stay as long as the engine, unless *model_data_unused.  Engines with a tutor share its memory of
  // intermediate results; their runs wait for each other.
  MaceStatus Init(const MultiNetDef *net_def, const std::vector<std::string> &input_nodes,
                  const std::vector<std::string> &output_nodes, const unsigned char *model_data,
                  const int64_t model_data_size, bool *model_data_unused = nullptr, MaceEngine *tutor = nullptr,
                  bool fake_warmup = false);
  MaceStatus Init(const MultiNetDef *net_def, const std::vector<std::string> &input_nodes,
                  const std::vector<std::string> &output_nodes, const std::string &model_data_file,
                  MaceEngine *tutor = nullptr, bool fake_warmup = false);
  MaceStatus Init(const NetDef *net_def, const std::vector<std::string> &input_nodes,
                  const std::vector<std::string> &output_nodes, const unsigned char *model_data,
                  const int64_t model_data_size, bool *model_data_unused = nullptr);
  MaceStatus Init(const NetDef *net_def, const std::vector<std::string> &input_nodes,
                  const std::vector<std::string> &output_nodes, const std::string &model_data_file);
  // MACE_UNSUPPORTED: the size of the weights has to be known.
  MaceStatus Init(const NetDef *net_def, const std::vector<std::string> &input_nodes,
                  const std::vector<std::string> &output_nodes, const unsigned char *model_data,
                  bool *model_data_unused = nullptr);

  // `outputs` may name some of the outputs only.
  MaceStatus Run(const std::map<std::string, MaceTensor> &inputs, std::map<std::string, MaceTensor> *outputs) {
    return Run(inputs, outputs, nullptr);
  }

  // With metadata: the times of every kernel call, by a second bundle that is compiled when it is asked for first.
  MaceStatus Run(const std::map<std::string, MaceTensor> &inputs, std::map<std::string, MaceTensor> *outputs,
                 RunMetadata *run_metadata);

  MaceStatus ReleaseIntermediateBuffer();

  std::vector<RuntimeType> GetRuntimeTypes() { return std::vector<RuntimeType>(core_ != nullptr ? 1 : 0, RT_CPU); }

 private:
  MaceStatus Create(const MultiNetDef *net_def, const std::vector<std::string> &input_nodes,
                    const std::vector<std::string> &output_nodes, MaceModel model, MaceEngine *tutor, bool warm_up);

  std::shared_ptr<MaceEngineCfgImpl> config_;
  std::shared_ptr<OpenclContext> context_;  // of which the network reads bytes
  MaceCore *core_;
};

}  // namespace mace

#include "mace/public/mace_engine.h"

#endif  // MACE_PUBLIC_MACE_H_
