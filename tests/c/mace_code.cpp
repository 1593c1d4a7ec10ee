// A model in code: mace_code NAME FILE_OF_WEIGHTS STEPS, the image on standard input, the scores on standard output.
// STEPS is the number of kernel calls that RunMetadata lists.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "mace/codegen/engine/mace_engine_factory.h"

int main(int count, char **words) {
  if (count < 4) return 1;
  std::ifstream file(words[2], std::ios::binary);
  const std::vector<unsigned char> weights((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  mace::MaceEngineConfig config;
  std::shared_ptr<mace::MaceEngine> engine;
  mace::MaceStatus status = mace::CreateMaceEngineFromCode(
      words[1], weights.empty() ? nullptr : weights.data(), weights.size(), {"image"}, {"probabilities"}, config, &engine);
  if (status != mace::MaceStatus::MACE_SUCCESS) {
    std::fprintf(stderr, "%s\n", status.information().c_str());
    return 10 + status.code();
  }
  std::shared_ptr<mace::MaceEngine> second;  // as MACE's example for Android and its older programs call it
  if (CreateMaceEngineFromCode(words[1], nullptr, 0, {"image"}, {"probabilities"}, config, &second, nullptr, engine.get(),
                               false) != mace::MaceStatus::MACE_SUCCESS)
    return 2;
  if (CreateMaceEngineFromCode(words[1], std::string(), {"image"}, {"probabilities"}, config, &second) !=
      mace::MaceStatus::MACE_SUCCESS)
    return 3;
  std::map<std::string, mace::MaceTensor> inputs, outputs;
  inputs["image"] = mace::MaceTensor({1, 8, 8, 1}, std::shared_ptr<float>(new float[64], std::default_delete<float[]>()));
  outputs["probabilities"] = mace::MaceTensor({1, 10}, std::shared_ptr<float>(new float[10], std::default_delete<float[]>()));
  if (std::fread(inputs["image"].data().get(), sizeof(float), 64, stdin) != 64) return 4;
  mace::RunMetadata metadata;
  status = engine->Run(inputs, &outputs, &metadata);
  if (status != mace::MaceStatus::MACE_SUCCESS) return 5;
  if (metadata.op_stats.size() != static_cast<size_t>(std::atoi(words[3]))) return 6;
  int64_t last = 0;
  for (const auto &step : metadata.op_stats) {
    if (step.operator_name.empty() || step.type.empty()) return 7;
    if (step.stats.start_micros < last || step.stats.end_micros < step.stats.start_micros) return 8;
    last = step.stats.end_micros;
  }
  std::fwrite(outputs["probabilities"].data().get(), sizeof(float), 10, stdout);
  return 0;
}
