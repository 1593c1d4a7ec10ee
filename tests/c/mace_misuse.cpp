// Misuse of MACE's API: one line for each case, "CASE CODE TEXT".  mace_misuse GRAPH WEIGHTS
#include <cstdio>
#include <fstream>
#include <functional>
#include <iterator>

#include "mace/public/mace.h"

namespace misuse {

using mace::MaceEngine;
using mace::MaceEngineConfig;
using mace::MaceStatus;
using mace::MaceTensor;
typedef std::vector<unsigned char> Bytes;
typedef std::map<std::string, MaceTensor> Tensors;

static Bytes bytes(const char *path) {
  std::ifstream file(path, std::ios::binary);
  return Bytes(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

static void report(const char *what, const MaceStatus &status) {
  std::printf("%s %d %s\n", what, status.code(), status.information().c_str());
  std::fflush(stdout);
}

static MaceTensor tensor(const std::vector<int64_t> &shape, mace::IDataType type = mace::IDT_FLOAT,
                         mace::MemoryType memory = mace::CPU_BUFFER) {
  int64_t count = 1;
  for (int64_t d : shape) count *= d < 0 ? 1 : d;
  return MaceTensor(shape, std::shared_ptr<float>(new float[count + 1](), std::default_delete<float[]>()),
                    mace::DataFormat::NHWC, type, memory);
}

static std::shared_ptr<MaceEngine> engine;

static MaceStatus create(const Bytes &graph, const Bytes &weights, const std::vector<std::string> &inputs,
                         const std::vector<std::string> &outputs, const MaceEngineConfig &config,
                         MaceEngine *tutor = nullptr) {
  engine.reset();
  return CreateMaceEngineFromProto(graph.data(), graph.size(), weights.data(), weights.size(), inputs, outputs, config,
                                   &engine, nullptr, tutor);
}

static void creation(const Bytes &graph, const Bytes &weights) {
  MaceEngineConfig config, hexagon(mace::HEXAGON);
  report("no_engine", CreateMaceEngineFromProto(graph.data(), graph.size(), weights.data(), weights.size(), {"x"}, {"y"},
                                                config, nullptr));
  report("no_graph", create(Bytes(), weights, {"x"}, {"y"}, config));
  report("no_weights_but_a_size", CreateMaceEngineFromProto(graph.data(), graph.size(), nullptr, 100, {"x"}, {"y"},
                                                            config, &engine));
  report("unknown_input", create(graph, weights, {"z"}, {"y"}, config));
  report("unknown_output", create(graph, weights, {"x"}, {"z"}, config));
  report("damaged_graph", create(Bytes(graph.begin(), graph.begin() + 20), weights, {"x"}, {"y"}, config));
  report("another_device", create(graph, weights, {"x"}, {"y"}, hexagon));
  MaceEngine idle(config);
  report("tutor_without_init", create(graph, weights, {"x"}, {"y"}, config, &idle));
  report("run_without_init", idle.Run(Tensors(), nullptr));
  Tensors none;
  report("run_without_init_with_outputs", idle.Run(none, &none));
  report("release_without_init", idle.ReleaseIntermediateBuffer());
  report("no_model", idle.Init(static_cast<mace::MultiNetDef *>(nullptr), {"x"}, {"y"}, weights.data(), 0));
  report("success", create(graph, weights, {"x"}, {"y"}, config));
  const mace::MultiNetDef net(graph.data(), graph.size());
  report("init_twice", engine->Init(&net, {"x"}, {"y"}, weights.data(), static_cast<int64_t>(weights.size())));
}

static void run(const char *what, const std::function<void(Tensors &, Tensors &)> &change) {
  Tensors inputs{{"x", tensor({1, 6, 5, 4})}}, outputs{{"y", tensor({1, 6, 5, 3})}};
  change(inputs, outputs);
  report(what, engine->Run(inputs, &outputs));
}

static void runs() {
  run("run", [](Tensors &, Tensors &) {});
  run("missing_input", [](Tensors &inputs, Tensors &) { inputs.clear(); });
  run("no_outputs", [](Tensors &, Tensors &outputs) { outputs.clear(); });
  run("further_input", [](Tensors &inputs, Tensors &) { inputs["z"] = tensor({1}); });
  run("further_output", [](Tensors &, Tensors &outputs) { outputs["z"] = tensor({1}); });
  run("input_without_data", [](Tensors &inputs, Tensors &) { inputs["x"] = MaceTensor({1, 6, 5, 4}, nullptr); });
  run("output_without_data", [](Tensors &, Tensors &outputs) { outputs["y"] = MaceTensor({1, 6, 5, 3}, nullptr); });
  run("small_output", [](Tensors &, Tensors &outputs) { outputs["y"] = tensor({1, 6, 5, 2}); });
  run("wrong_rank", [](Tensors &inputs, Tensors &) { inputs["x"] = tensor({6, 5, 4}); });
  run("too_many_axes", [](Tensors &inputs, Tensors &) { inputs["x"] = tensor(std::vector<int64_t>(17, 1)); });
  run("negative_axis", [](Tensors &inputs, Tensors &) { inputs["x"] = tensor({1, -6, 5, 4}); });
  run("wrong_shape", [](Tensors &inputs, Tensors &) { inputs["x"] = tensor({1, 6, 5, 7}); });
  run("no_type", [](Tensors &inputs, Tensors &) { inputs["x"] = tensor({1, 6, 5, 4}, mace::IDT_INVALID); });
  run("gpu_memory",
      [](Tensors &inputs, Tensors &) { inputs["x"] = tensor({1, 6, 5, 4}, mace::IDT_FLOAT, mace::GPU_BUFFER); });
  run("afterwards", [](Tensors &, Tensors &) {});
}

static void configurations() {
  MaceEngineConfig config;
  report("policy", config.SetCPUThreadPolicy(1, static_cast<mace::CPUAffinityPolicy>(9)));
  report("threads", config.SetCPUThreadPolicy(1000000, mace::AFFINITY_POWER_SAVE));
  report("gpu_context", config.SetGPUContext(mace::GPUContextBuilder().SetStoragePath("/").Finalize()));
  report("gpu_hints", config.SetGPUHints(mace::PERF_HIGH, mace::PRIORITY_LOW));
  report("unsigned_pd", config.SetHexagonToUnsignedPD());
  report("hexagon", config.SetHexagonPower(mace::HEXAGON_NN_CORNER_TURBO, true, 100));
  report("qnn", config.SetQnnPerformance(mace::HEXAGON_BURST));
  report("accelerator_cache", config.SetAcceleratorCache(mace::ACCELERATOR_CACHE_LOAD, "", ""));
  report("apu", config.SetAPUHints(100, mace::NEURON_PREFER_LOW_POWER));
}

static int client(int count, char **words) {
  if (count < 3) return 1;
  const Bytes graph = bytes(words[1]), weights = bytes(words[2]);
  configurations();
  creation(graph, weights);
  if (engine == nullptr) return 2;
  runs();
  engine.reset();
  return 0;
}

}  // namespace misuse
