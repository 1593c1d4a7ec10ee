// The clients of MACE's API as one program, because the headers take most of the time to compile: mace_client NAME ...
#include "mace_helpers.cpp"
#include "mace_misuse.cpp"
#include "mace_run_model.cpp"
#include "mace_threads.cpp"

int main(int count, char **words) {
  const std::string name = count > 1 ? words[1] : "";
  if (name == "helpers") return helpers::client(count - 1, words + 1);
  if (name == "misuse") return misuse::client(count - 1, words + 1);
  if (name == "threads") return threads::client(count - 1, words + 1);
  return name == "run_model" ? run_model::client(count - 1, words + 1) : 1;
}
