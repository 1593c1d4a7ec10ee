// A C++98 program for MACE Micro's API: micro_client MODEL.bin, the image on standard input.
// Standard output: "CASE STATUS" for each case, then the scores of all runs as numbers.
#include <stdio.h>
#include <string.h>

#include "micro/codegen/digits/micro_engine_factory.h"
#include "micro/include/public/micro.h"

static float image[64];
static const int32_t dims[4] = {1, 1, 8, 8};
static uint8_t binary[1 << 17];

static void report(const char *what, micro::MaceStatus status) { printf("%s %d\n", what, status); }

static bool print_scores(micro::MaceMicroEngine *engine) {
  float *scores = NULL;
  const int32_t *shape = NULL;
  uint32_t rank = 0;
  if (engine->GetOutputData(0, reinterpret_cast<void **>(&scores), &shape, &rank) != micro::MACE_SUCCESS) return false;
  printf("scores");
  for (int32_t i = 0; i < shape[rank - 1]; ++i) printf(" %.9g", static_cast<double>(scores[i]));
  printf("\n");
  return true;
}

static void misuse(micro::MaceMicroEngine *engine) {
  void *data = NULL;
  const int32_t *shape = NULL;
  uint32_t rank = 0;
  const int32_t wrong[4] = {1, 1, 8, 9};
  micro::MaceMicroEngine idle;
  report("run_without_init", idle.Run());
  report("register_without_init", idle.RegisterInputData(0, image, dims));
  report("output_without_init", idle.GetOutputData(0, &data, &shape, &rank));
  report("init_with_null", idle.Init(NULL));
  report("singleton_null", micro::digits::GetMicroEngineSingleton(NULL));
  report("run_without_input", engine->Run());
  report("output_before_run", engine->GetOutputData(0, &data, &shape, &rank));
  report("unknown_input", engine->RegisterInputData(1, image, dims));
  report("input_null", engine->RegisterInputData(0, NULL, dims));
  report("dims_null", engine->RegisterInputData(0, image, NULL));
  report("wrong_shape", engine->RegisterInputData(0, image, wrong));
  report("register", engine->RegisterInputData(0, image, dims));
  report("run", engine->Run());
  report("unknown_output", engine->GetOutputData(1, &data, &shape, &rank));
  report("output_null", engine->GetOutputData(0, NULL, &shape, &rank));
  report("output_of_operator", engine->GetOpOutputData(0, 0, &data, &shape, &rank));
}

static void from_binary(size_t size) {
  micro::MaceMicroEngine *engine = NULL;
  const int32_t count = static_cast<int32_t>(size);
  report("binary_null", micro::digits::CreateMaceMicroEngineFromBinary(NULL, count, 1, &engine));
  report("binary_cut", micro::digits::CreateMaceMicroEngineFromBinary(binary, count - 80, 1, &engine));
  report("binary_inputs", micro::digits::CreateMaceMicroEngineFromBinary(binary, count, 2, &engine));
  report("binary_size", micro::digits::CreateMaceMicroEngineFromBinary(binary, -1, 1, &engine));
  binary[48] ^= 1;
  report("binary_of_another", micro::digits::CreateMaceMicroEngineFromBinary(binary, count, 1, &engine));
  binary[48] ^= 1;
  report("binary_of_none", micro::CreateMaceMicroEngineFromBinary(binary, static_cast<uint32_t>(size), NULL, 1, &engine));
  for (int i = 0; i < 2; ++i) {
    report("binary", micro::digits::CreateMaceMicroEngineFromBinary(binary, count, &engine));
    if (engine == NULL) return;
    report("binary_register", engine->RegisterInputData(0, image, dims));
    report("binary_run", engine->Run());
    print_scores(engine);
  }
  micro::DestroyMicroEngineFromBinary(engine);
}

int main(int count, char **words) {
  micro::MaceMicroEngine *engine = NULL;
  if (count < 2 || fread(image, sizeof(float), 64, stdin) != 64) return 1;
  report("singleton", micro::digits::GetMicroEngineSingleton(&engine));
  if (engine == NULL) return 2;
  misuse(engine);
  if (!print_scores(engine)) return 3;
  FILE *file = fopen(words[1], "rb");
  if (file == NULL) return 4;
  const size_t size = fread(binary, 1, sizeof binary, file);
  fclose(file);
  from_binary(size);
  return 0;
}
