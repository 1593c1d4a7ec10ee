// The wrapper of tenon.hpp on the digits network: the same answer in every way.

#include "tenon.hpp"

#include <atomic>
#include <cstdio>
#include <iostream>

static void require(bool condition, const char *what) {
  if (condition) return;
  std::fprintf(stderr, "%s\n", what);
  std::exit(1);
}

int main(int count, char **words) try {
  require(count == 2, "give a bundle");
  tenon::Bundle bundle(words[1]);
  require(bundle.inputs().at(0).name == std::string("image"), "name of the input");
  require(bundle.memory().weights > 0 && bundle.bindings() == 1, "memory and bindings");
  std::vector<float> pixels(bundle.inputs()[0].bytes / sizeof(float));
  require(std::fread(pixels.data(), sizeof(float), pixels.size(), stdin) == pixels.size(), "pixels");

  tenon::Engine engine(bundle);
  engine.input("image").set(pixels);
  engine.run();
  const auto scores = engine.output(0).get<float>();
  require(engine.output().shape() == std::vector<std::int64_t>({1, 10}), "shape");

  tenon::EngineOptions options;
  options.gpu = "queue_window: 1\n"; /* of no use to a bundle for processors */
  options.threads = bundle.max_threads() > 1 ? 2 : 1;
  options.share_activations = &engine;
  tenon::Engine second(tenon::Bundle(words[1]), options);  // keeps the bundle
  second.input().set(pixels);
  std::atomic<int> called{0};
  second.run_async([&](TenonStatus status) { called = status == TENON_OK; });
  require(second.wait() && called == 1, "asynchronous run");
  require(second.output("probabilities").get<float>() == scores, "scores");

  try {
    engine.input().set(std::vector<double>(pixels.size()));
    require(false, "an element type that does not fit is refused");
  } catch (const tenon::Error &error) {
    require(error.status() == TENON_INVALID_ARGUMENT, error.what());
  }
  try {
    engine.output("nothing");
    require(false, "an unknown name is refused");
  } catch (const tenon::Error &error) {
    require(error.status() == TENON_NOT_FOUND, error.what());
  }
  std::fwrite(scores.data(), sizeof(float), scores.size(), stdout);
  return 0;
} catch (const tenon::Error &error) {
  std::cerr << tenon_status_name(error.status()) << ": " << error.what() << '\n';
  return 1;
}
