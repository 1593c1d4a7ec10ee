// The network of probe.c by MACE Micro's API: the probe's region holds the inputs, then the outputs.
#include "micro/codegen/digits/micro_engine_factory.h"

extern "C" {
#include "network.h"

__attribute__((aligned(64))) uint8_t tenon_mutable[64 * 4 + 10 * 4];
const size_t tenon_mutable_size = sizeof tenon_mutable;
uint8_t tenon_activations[1];
const size_t tenon_activations_size = 0;

int tenon_run(void) {
  static const int32_t dims[4] = {1, 1, 8, 8};
  micro::MaceMicroEngine *engine = NULL;
  void *scores = NULL;
  const int32_t *shape = NULL;
  uint32_t rank = 0;
  if (micro::digits::GetMicroEngineSingleton(&engine) != micro::MACE_SUCCESS) return 1;
  if (engine->RegisterInputData(0, tenon_mutable, dims) != micro::MACE_SUCCESS) return 2;
  if (engine->Run() != micro::MACE_SUCCESS) return 3;
  if (engine->GetOutputData(0, &scores, &shape, &rank) != micro::MACE_SUCCESS) return 4;
  if (rank != 2 || shape[0] != 1 || shape[1] != 10) return 5;
  for (int i = 0; i < 40; ++i) tenon_mutable[256 + i] = static_cast<uint8_t *>(scores)[i];
  return 0;
}
}
