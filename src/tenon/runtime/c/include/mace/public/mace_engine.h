// Definitions for mace.h, over the C functions of libmace: include that.

#ifndef MACE_PUBLIC_MACE_ENGINE_H_
#define MACE_PUBLIC_MACE_ENGINE_H_

#include <algorithm>
#include <utility>

namespace mace {

class MaceEngineCfgImpl {
 public:
  MaceEngineCfgImpl() = default;

  void SetRuntimeType(const RuntimeType runtime_type, const char *sub_graph_name) {
    runtimes_[sub_graph_name != nullptr ? sub_graph_name : "default_graph"] = runtime_type;
  }
  MaceStatus SetOpenclContext(std::shared_ptr<OpenclContext> context) {
    context_ = context;
    return MaceStatus();
  }
  MaceStatus SetGPUHints(GPUPerfHint perf_hint, GPUPriorityHint priority_hint) {
    perf_hint_ = perf_hint;
    priority_hint_ = priority_hint;
    return MaceStatus();
  }
  MaceStatus SetCPUThreadPolicy(int num_threads_hint, CPUAffinityPolicy policy) {
    if (policy < AFFINITY_NONE || policy > AFFINITY_POWER_SAVE)
      return MaceStatus(MaceStatus::MACE_INVALID_ARGS, "there is no such CPU affinity policy");
    num_threads_ = num_threads_hint;
    policy_ = policy;
    return MaceStatus();
  }
  MaceStatus SetHexagonToUnsignedPD() { return NoDevice("Hexagon"); }
  // These store what is set, as in builds of MACE for the CPU.
  MaceStatus SetHexagonPower(HexagonNNCornerType corner, bool dcvs_enable, int latency) {
    corner_ = corner;
    dcvs_enable_ = dcvs_enable;
    latency_ = latency;
    return NoDevice("Hexagon");
  }
  MaceStatus SetQnnPerformance(HexagonPerformanceType type) {
    performance_ = type;
    return NoDevice("QNN");
  }
  MaceStatus SetAcceleratorCache(AcceleratorCachePolicy policy, const std::string &binary_file,
                                 const std::string &storage_file) {
    cache_policy_ = policy;
    binary_file_ = binary_file;
    storage_file_ = storage_file;
    return NoDevice("accelerator");
  }
  MaceStatus SetAPUHints(uint8_t boost_hint, APUPreferenceHint preference_hint) {
    boost_hint_ = boost_hint;
    preference_hint_ = preference_hint;
    return NoDevice("APU");
  }

  // A line that says where bytes lie; the context, and with it the engine's configuration, keeps them.
  static std::string InMemory(const char *word, const std::vector<unsigned char> &bytes) {
    char place[64];
    if (bytes.empty()) return std::string();
    snprintf(place, sizeof place, ": %p %zu\n", static_cast<const void *>(bytes.data()), bytes.size());
    return word + std::string(place);
  }

  // Lines for the host program of a GPU.
  std::string gpu_lines() const {
    static const char *const hints[] = {"default", "low", "normal", "high"};
    std::string lines;
    if (perf_hint_ > PERF_DEFAULT && perf_hint_ <= PERF_HIGH)
      lines += std::string("performance: ") + hints[perf_hint_] + "\n";
    if (priority_hint_ > PRIORITY_DEFAULT && priority_hint_ <= PRIORITY_HIGH)
      lines += std::string("priority: ") + hints[priority_hint_] + "\n";
    if (context_ == nullptr) return lines;
    if (!context_->storage_path.empty()) lines += "cache: " + context_->storage_path + "\n";
    for (const auto &path : context_->binary_paths) lines += "binary: " + path + "\n";
    if (!context_->parameter_path.empty()) lines += "parameters: " + context_->parameter_path + "\n";
    lines += InMemory("binary_in_memory", context_->binary);
    lines += InMemory("parameters_in_memory", context_->parameter);
    if (context_->reuse_policy == OpenCLCacheReusePolicy::REUSE_SAME_GPU) lines += "reuse: same-gpu\n";
    return lines;
  }

  int num_threads() const { return num_threads_; }
  CPUAffinityPolicy cpu_affinity_policy() const { return policy_; }
  std::shared_ptr<OpenclContext> opencl_context() const { return context_; }
  GPUPriorityHint gpu_priority_hint() const { return priority_hint_; }
  GPUPerfHint gpu_perf_hint() const { return perf_hint_; }
  HexagonNNCornerType hexagon_corner() const { return corner_; }
  bool hexagon_dcvs_enable() const { return dcvs_enable_; }
  int hexagon_latency() const { return latency_; }
  HexagonPerformanceType hexagon_performance() const { return performance_; }
  AcceleratorCachePolicy accelerator_cache_policy() const { return cache_policy_; }
  uint8_t apu_boost_hint() const { return boost_hint_; }
  APUPreferenceHint apu_preference_hint() const { return preference_hint_; }
  std::string accelerator_binary_file() const { return binary_file_; }
  std::string accelerator_storage_file() const { return storage_file_; }

  RuntimeType runtime_type(const std::string &sub_graph_name) const {
    const auto found = runtimes_.find(sub_graph_name);
    return found == runtimes_.end() ? RT_NONE : static_cast<RuntimeType>(found->second);
  }

  // The first that is not the CPU, of all subgraphs.
  RuntimeType other_runtime() const {
    for (const auto &entry : runtimes_)
      if (entry.second != RT_CPU && entry.second != RT_NONE) return static_cast<RuntimeType>(entry.second);
    return RT_CPU;
  }

 private:
  static MaceStatus NoDevice(const char *device) {
    return MaceStatus(MaceStatus::MACE_RUNTIME_ERROR, std::string("there is no ") + device + ": the CPU computes");
  }

  int num_threads_ = -1;
  CPUAffinityPolicy policy_ = AFFINITY_NONE;
  std::shared_ptr<OpenclContext> context_;
  GPUPriorityHint priority_hint_ = PRIORITY_LOW;
  GPUPerfHint perf_hint_ = PERF_NORMAL;
  HexagonNNCornerType corner_ = HEXAGON_NN_CORNER_TURBO;
  bool dcvs_enable_ = true;
  int latency_ = 100;
  HexagonPerformanceType performance_ = HEXAGON_SYSTEM_SETTINGS;
  AcceleratorCachePolicy cache_policy_ = ACCELERATOR_CACHE_NONE;
  std::string binary_file_, storage_file_;
  uint8_t boost_hint_ = 100;
  APUPreferenceHint preference_hint_ = NEURON_PREFER_FAST_SINGLE_ANSWER;
  std::unordered_map<std::string, int> runtimes_;
};

inline MaceEngineConfig::MaceEngineConfig() : impl_(std::make_shared<MaceEngineCfgImpl>()) {}
inline MaceEngineConfig::MaceEngineConfig(const DeviceType device_type)
    : impl_(std::make_shared<MaceEngineCfgImpl>()) {
  impl_->SetRuntimeType(static_cast<RuntimeType>(device_type), "default_graph");
}
inline void MaceEngineConfig::SetRuntimeType(const RuntimeType runtime_type, const char *sub_graph_name) {
  impl_->SetRuntimeType(runtime_type, sub_graph_name);
}
inline MaceStatus MaceEngineConfig::SetGPUContext(std::shared_ptr<OpenclContext> context) {
  return impl_->SetOpenclContext(context);
}
inline MaceStatus MaceEngineConfig::SetGPUHints(GPUPerfHint perf_hint, GPUPriorityHint priority_hint) {
  return impl_->SetGPUHints(perf_hint, priority_hint);
}
inline MaceStatus MaceEngineConfig::SetCPUThreadPolicy(int num_threads_hint, CPUAffinityPolicy policy) {
  return impl_->SetCPUThreadPolicy(num_threads_hint, policy);
}
inline MaceStatus MaceEngineConfig::SetHexagonToUnsignedPD() { return impl_->SetHexagonToUnsignedPD(); }
inline MaceStatus MaceEngineConfig::SetHexagonPower(HexagonNNCornerType corner, bool dcvs_enable, int latency) {
  return impl_->SetHexagonPower(corner, dcvs_enable, latency);
}
inline MaceStatus MaceEngineConfig::SetQnnPerformance(HexagonPerformanceType type) {
  return impl_->SetQnnPerformance(type);
}
inline MaceStatus MaceEngineConfig::SetAcceleratorCache(AcceleratorCachePolicy policy, const std::string &binary_file,
                                                        const std::string &storage_file) {
  return impl_->SetAcceleratorCache(policy, binary_file, storage_file);
}
inline MaceStatus MaceEngineConfig::SetAPUHints(uint8_t boost_hint, APUPreferenceHint preference_hint) {
  return impl_->SetAPUHints(boost_hint, preference_hint);
}

namespace core_internal {

inline MaceStatus Status(int code, const MaceError &error) {
  return code == 0 ? MaceStatus() : MaceStatus(static_cast<MaceStatus::Code>(code), error.text);
}

inline std::vector<const char *> Pointers(const std::vector<std::string> &names) {
  std::vector<const char *> pointers;
  for (const auto &name : names) pointers.push_back(name.c_str());
  return pointers;
}

// False if the tensor has more axes than there can be.
inline bool Fill(const std::string &name, const std::vector<int64_t> &shape, void *data, DataFormat format,
                 IDataType type, std::vector<MaceCoreTensor> *tensors) {
  if (shape.size() > TENON_MAX_RANK) return false;
  MaceCoreTensor tensor = MaceCoreTensor();
  tensor.name = name.c_str();
  tensor.data = data;
  std::copy(shape.begin(), shape.end(), tensor.shape);
  tensor.rank = static_cast<int32_t>(shape.size());
  tensor.format = static_cast<int32_t>(format);
  tensor.type = type;
  tensors->push_back(tensor);
  return true;
}

}  // namespace core_internal

inline MaceEngine::MaceEngine(const MaceEngineConfig &config) : config_(config.impl_), core_(nullptr) {}

inline MaceStatus MaceEngine::Create(const MultiNetDef *net_def, const std::vector<std::string> &input_nodes,
                                     const std::vector<std::string> &output_nodes, MaceModel model, MaceEngine *tutor,
                                     bool warm_up) {
  if (net_def == nullptr) return MaceStatus(MaceStatus::MACE_INVALID_ARGS, "the model is NULL");
  if (core_ != nullptr) return MaceStatus(MaceStatus::MACE_INVALID_ARGS, "the engine is initialized already");
  if (tutor != nullptr && tutor->core_ == nullptr)
    return MaceStatus(MaceStatus::MACE_INVALID_ARGS, "the tutor is not initialized");
  model.graph = net_def->graph();
  model.graph_size = net_def->graph_size();
  model.linked = net_def->linked();
  MaceCoreConfig config = MaceCoreConfig();
  config.runtime = config_->other_runtime();
  config.threads = config_->num_threads();
  config.policy = config_->cpu_affinity_policy();
  config.warm_up = warm_up ? 1 : 0;
  config.tutor = tutor != nullptr ? tutor->core_ : nullptr;
  context_ = config_->opencl_context();
  const std::string gpu = config_->gpu_lines();
  config.gpu = gpu.c_str();
  const auto inputs = core_internal::Pointers(input_nodes), outputs = core_internal::Pointers(output_nodes);
  MaceError error = MaceError();
  const int code = mace_core_create(&model, inputs.data(), inputs.size(), outputs.data(), outputs.size(), &config,
                                    &core_, &error);
  return core_internal::Status(code, error);
}

inline MaceStatus MaceEngine::Init(const MultiNetDef *net_def, const std::vector<std::string> &input_nodes,
                                   const std::vector<std::string> &output_nodes, const unsigned char *model_data,
                                   const int64_t model_data_size, bool *model_data_unused, MaceEngine *tutor,
                                   bool fake_warmup) {
  if (model_data_size < 0) return MaceStatus(MaceStatus::MACE_INVALID_ARGS, "the weights have less than 0 bytes");
  MaceModel model = MaceModel();
  model.weights = model_data;
  model.weights_size = static_cast<size_t>(model_data_size);
  if (model_data_unused != nullptr) *model_data_unused = model_data_size == 0;
  return Create(net_def, input_nodes, output_nodes, model, tutor, fake_warmup);
}

inline MaceStatus MaceEngine::Init(const MultiNetDef *net_def, const std::vector<std::string> &input_nodes,
                                   const std::vector<std::string> &output_nodes, const std::string &model_data_file,
                                   MaceEngine *tutor, bool fake_warmup) {
  MaceModel model = MaceModel();
  model.weights_file = model_data_file.c_str();
  return Create(net_def, input_nodes, output_nodes, model, tutor, fake_warmup);
}

inline MaceStatus MaceEngine::Init(const NetDef *net_def, const std::vector<std::string> &input_nodes,
                                   const std::vector<std::string> &output_nodes, const unsigned char *model_data,
                                   const int64_t model_data_size, bool *model_data_unused) {
  const MultiNetDef *base = net_def;
  return Init(base, input_nodes, output_nodes, model_data, model_data_size, model_data_unused, nullptr, false);
}

inline MaceStatus MaceEngine::Init(const NetDef *net_def, const std::vector<std::string> &input_nodes,
                                   const std::vector<std::string> &output_nodes, const std::string &model_data_file) {
  const MultiNetDef *base = net_def;
  return Init(base, input_nodes, output_nodes, model_data_file, nullptr, false);
}

inline MaceStatus MaceEngine::Init(const NetDef *, const std::vector<std::string> &, const std::vector<std::string> &,
                                   const unsigned char *, bool *) {
  return MaceStatus(MaceStatus::MACE_UNSUPPORTED, "Init without the size of the weights: give it");
}

inline MaceStatus MaceEngine::Run(const std::map<std::string, MaceTensor> &inputs,
                                  std::map<std::string, MaceTensor> *outputs, RunMetadata *run_metadata) {
  if (outputs == nullptr) return MaceStatus(MaceStatus::MACE_INVALID_ARGS, "the outputs are NULL");
  std::vector<MaceCoreTensor> in, out;
  for (const auto &entry : inputs) {
    const MaceTensor &tensor = entry.second;
    if (tensor.memory_ != CPU_BUFFER) return MaceStatus(MaceStatus::MACE_UNSUPPORTED, "tensors are in CPU_BUFFER");
    if (!core_internal::Fill(entry.first, tensor.shape_, tensor.data_.get(), tensor.format_, tensor.type_, &in))
      return MaceStatus(MaceStatus::MACE_INVALID_ARGS, "input '" + entry.first + "' has too many axes");
  }
  for (auto &entry : *outputs) {
    const MaceTensor &tensor = entry.second;
    if (tensor.memory_ != CPU_BUFFER) return MaceStatus(MaceStatus::MACE_UNSUPPORTED, "tensors are in CPU_BUFFER");
    if (!core_internal::Fill(entry.first, tensor.shape_, tensor.data_.get(), tensor.format_, tensor.type_, &out))
      return MaceStatus(MaceStatus::MACE_INVALID_ARGS, "output '" + entry.first + "' has too many axes");
  }
  MaceError error = MaceError();
  const MaceCoreStep *steps = nullptr;
  size_t count = 0;
  const int code = run_metadata == nullptr
                       ? mace_core_run(core_, in.data(), in.size(), out.data(), out.size(), &error)
                       : mace_core_profile(core_, in.data(), in.size(), out.data(), out.size(), &steps, &count, &error);
  if (code != 0) return core_internal::Status(code, error);
  for (const auto &tensor : out) {
    auto &shape = outputs->find(tensor.name)->second.shape_;
    shape.assign(tensor.shape, tensor.shape + tensor.rank);
  }
  for (size_t i = 0; i < count; i++) {
    OperatorStats stats = OperatorStats();
    stats.operator_name = steps[i].layer;
    stats.type = steps[i].op;
    stats.output_shape.resize(1);
    stats.args.padding_type = -1;
    stats.stats.start_micros = steps[i].start_micros;
    stats.stats.end_micros = steps[i].end_micros;
    run_metadata->op_stats.push_back(stats);
  }
  return MaceStatus();
}

inline MaceStatus MaceEngine::ReleaseIntermediateBuffer() {
  MaceError error = MaceError();
  return core_internal::Status(mace_core_release_memory(core_, &error), error);
}

// Creates an engine from a model: the content of its .pb (or of a .tenon file) and of its .data, which must
// stay as long as the engine.
inline MaceStatus CreateMaceEngineFromProto(
    const unsigned char *model_graph_proto, const size_t model_graph_proto_size,
    const unsigned char *model_weights_data, const size_t model_weights_data_size,
    const std::vector<std::string> &input_nodes, const std::vector<std::string> &output_nodes,
    const MaceEngineConfig &config, std::shared_ptr<MaceEngine> *engine, bool *model_data_unused = nullptr,
    MaceEngine *tutor = nullptr, bool fake_warmup = false) {
  if (engine == nullptr) return MaceStatus(MaceStatus::MACE_INVALID_ARGS, "the engine is NULL");
  const MultiNetDef net(model_graph_proto, model_graph_proto_size);
  auto made = std::make_shared<MaceEngine>(config);
  const MaceStatus status = made->Init(&net, input_nodes, output_nodes, model_weights_data,
                                       static_cast<int64_t>(model_weights_data_size), model_data_unused, tutor,
                                       fake_warmup);
  if (status == MaceStatus()) *engine = std::move(made);
  return status;
}

MACE_DEPRECATED inline MaceStatus CreateMaceEngineFromProto(
    const std::vector<unsigned char> &model_pb, const std::string &model_data_file,
    const std::vector<std::string> &input_nodes, const std::vector<std::string> &output_nodes,
    const MaceEngineConfig &config, std::shared_ptr<MaceEngine> *engine, MaceEngine *tutor = nullptr) {
  if (engine == nullptr) return MaceStatus(MaceStatus::MACE_INVALID_ARGS, "the engine is NULL");
  const MultiNetDef net(model_pb.data(), model_pb.size());
  auto made = std::make_shared<MaceEngine>(config);
  const MaceStatus status = made->Init(&net, input_nodes, output_nodes, model_data_file, tutor);
  if (status == MaceStatus()) *engine = std::move(made);
  return status;
}

}  // namespace mace

#endif  // MACE_PUBLIC_MACE_ENGINE_H_
