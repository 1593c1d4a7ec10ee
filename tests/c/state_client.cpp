/* Runs a bundle on sequences from standard input: the number of its runs, then the only input that is no state. */

#include "tenon.hpp"

#include <cstdio>

int main(int count, char **words) {
  tenon::EngineOptions options;
  options.threads = count > 2 ? 2 : 1;
  tenon::Engine engine(tenon::Bundle(words[1]), options);
  const tenon::Tensor input = engine.input("x"), output = engine.output("y");
  if (input.about().is_state || !engine.input("h").about().is_state || !engine.output("hn").about().is_state) return 3;
  for (unsigned char runs; std::fread(&runs, 1, 1, stdin) == 1; engine.reset())
    for (int i = 0; i < runs; i++) {
      if (std::fread(input.data(), 1, input.bytes(), stdin) != input.bytes()) return 2;
      engine.run();
      std::fwrite(output.data(), 1, output.bytes(), stdout);
    }
  return 0;
}
