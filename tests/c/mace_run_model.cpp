// A program in MACE's manner: mace_run_model GRAPH WEIGHTS|- CASE, the input on standard input, results on standard output.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>

#include "mace/public/mace.h"
#include "mace/utils/logging.h"

namespace run_model {

using mace::DataFormat;
using mace::MaceEngine;
using mace::MaceStatus;
using mace::MaceTensor;
typedef std::map<std::string, MaceTensor> Tensors;

static std::vector<unsigned char> bytes(const char *path) {
  std::ifstream file(path, std::ios::binary);
  return std::vector<unsigned char>(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

static MaceTensor tensor(const std::vector<int64_t> &shape, DataFormat format, mace::IDataType type = mace::IDT_FLOAT) {
  int64_t count = 1;
  for (int64_t d : shape) count *= d;
  return MaceTensor(shape, std::shared_ptr<float>(new float[count](), std::default_delete<float[]>()), format, type);
}

static int fail(const MaceStatus &status) {
  std::fprintf(stderr, "%d %s\n", status.code(), status.information().c_str());
  return 10 + status.code();
}

static int client(int count, char **words) {
  if (count < 4) return 1;
  const auto graph = bytes(words[1]), weights = bytes(words[2]);
  const std::string what = words[3];
  mace::MaceEngineConfig config;
  if (config.SetCPUThreadPolicy(1, mace::AFFINITY_BIG_ONLY) != MaceStatus::MACE_SUCCESS) return 2;
  std::shared_ptr<MaceEngine> tutor, engine;
  MaceStatus status;
  for (auto *made : {&tutor, &engine}) {
    status = CreateMaceEngineFromProto(graph.data(), graph.size(), weights.data(), weights.size(), {"x"}, {"y"}, config,
                                       made, nullptr, made == &engine ? tutor.get() : nullptr, made == &engine);
    if (status != MaceStatus::MACE_SUCCESS) return fail(status);
  }
  if (engine->GetRuntimeTypes() != std::vector<mace::RuntimeType>{mace::RT_CPU}) return 3;
  const bool front = what == "nchw", large = what == "larger";
  const int64_t height = large ? 8 : 6;
  Tensors inputs{{"x", front ? tensor({1, 4, 6, 5}, DataFormat::NCHW) : tensor({1, height, 5, 4}, DataFormat::NHWC)}};
  Tensors outputs{{"y", front ? tensor({1, 3, 6, 5}, DataFormat::NCHW) : tensor({1, height, 5, 3}, DataFormat::NHWC)}};
  if (what == "half")
    outputs["y"] = tensor({1, 6, 5, 3}, DataFormat::NHWC, mace::IDT_FLOAT16);
  const size_t elements = large ? 160 : 120;
  if (std::fread(inputs["x"].data().get(), sizeof(float), elements, stdin) != elements) return 4;
  mace::RunMetadata metadata;
  status = what == "profile" ? engine->Run(inputs, &outputs, &metadata) : engine->Run(inputs, &outputs);
  if (status != MaceStatus::MACE_SUCCESS) return fail(status);
  if (engine->ReleaseIntermediateBuffer() != MaceStatus::MACE_SUCCESS) return 5;
  if (what == "profile" && (metadata.op_stats.empty() || metadata.op_stats[0].stats.end_micros <= 0)) return 6;
  for (int64_t d : outputs["y"].shape()) std::fprintf(stderr, "%d ", static_cast<int>(d));
  const size_t width = what == "half" ? 2 : 4;
  std::fwrite(outputs["y"].data<void>().get(), width, elements / 4 * 3, stdout);
  return 0;
}

}  // namespace run_model
