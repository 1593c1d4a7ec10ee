// Engines of one model in several threads; every second one shares the memory of results with the one before it:
// mace_client threads GRAPH WEIGHTS COUNT, the input on standard input, the result of all of them on standard output.
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "mace/public/mace.h"

namespace threads {

typedef std::vector<float> Floats;

static mace::MaceTensor tensor(const std::vector<int64_t> &shape, const Floats &values) {
  std::shared_ptr<float> data(new float[values.size()], std::default_delete<float[]>());
  std::copy(values.begin(), values.end(), data.get());
  return mace::MaceTensor(shape, data);
}

static void work(mace::MaceEngine *engine, const Floats &given, Floats *answer) {
  for (int i = 0; i < 3; i++) {
    std::map<std::string, mace::MaceTensor> inputs{{"x", tensor({1, 6, 5, 4}, given)}};
    std::map<std::string, mace::MaceTensor> outputs{{"y", tensor({1, 6, 5, 3}, Floats(90))}};
    if (engine->Run(inputs, &outputs) != mace::MaceStatus::MACE_SUCCESS) return;
    answer->assign(outputs["y"].data().get(), outputs["y"].data().get() + 90);
  }
}

static int client(int count, char **words) {
  if (count < 4) return 1;
  const auto graph = run_model::bytes(words[1]), weights = run_model::bytes(words[2]);
  const size_t engines = static_cast<size_t>(std::atoi(words[3]));
  Floats given(120);
  if (std::fread(given.data(), sizeof(float), given.size(), stdin) != given.size()) return 2;
  std::vector<std::shared_ptr<mace::MaceEngine>> made(engines);
  std::vector<Floats> answers(engines);
  std::vector<std::thread> running;
  mace::MaceEngineConfig config;
  if (config.SetCPUThreadPolicy(2, mace::AFFINITY_NONE) != mace::MaceStatus::MACE_SUCCESS) return 3;
  const auto create = [&](size_t i) {
    mace::MaceEngine *tutor = i % 2 != 0 ? made[i - 1].get() : nullptr;
    CreateMaceEngineFromProto(graph.data(), graph.size(), weights.data(), weights.size(), {"x"}, {"y"}, config, &made[i],
                              nullptr, tutor, false);
  };
  for (size_t first = 0; first < 2; first++) {
    for (size_t i = first; i < engines; i += 2) running.emplace_back(create, i);
    for (auto &thread : running) thread.join();
    running.clear();
  }
  for (size_t i = 0; i < engines; i++) {
    if (!made[i]) return 4;
    running.emplace_back(work, made[i].get(), given, &answers[i]);
  }
  for (auto &thread : running) thread.join();
  for (const Floats &each : answers)
    if (each.empty() || each != answers[0]) return 5;
  std::fwrite(answers[0].data(), sizeof(float), answers[0].size(), stdout);
  return 0;
}

}  // namespace threads
