// Compiled kernels and sizes of work groups from memory: mace_gpu BUNDLE KERNELS PARAMETERS ("-": none)
#include <cstdio>
#include <fstream>
#include <iterator>

#include "mace/public/mace.h"

namespace gpu {

typedef std::vector<unsigned char> Bytes;
typedef std::map<std::string, mace::MaceTensor> Tensors;

static Bytes bytes(const char *path) {
  std::ifstream file(path, std::ios::binary);
  return Bytes(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

static Tensors tensors(const char *name) {
  const std::vector<int64_t> shape = {1, 3, 10, 10};
  std::shared_ptr<float> data(new float[300](), std::default_delete<float[]>());
  return Tensors{{name, mace::MaceTensor(shape, data, mace::DataFormat::NONE)}};
}

static mace::MaceStatus run(const char *const *files) {
  const Bytes graph = bytes(files[0]);
  mace::MaceEngineConfig config(mace::GPU);
  {
    const Bytes kernels = bytes(files[1]), parameters = bytes(files[2]);
    mace::GPUContextBuilder builder;
    builder.SetOpenCLBinary(kernels.data(), kernels.size());
    config.SetGPUContext(builder.SetOpenCLParameter(parameters.data(), parameters.size()).Finalize());
  }
  std::shared_ptr<mace::MaceEngine> engine;
  const mace::MaceStatus made =
      mace::CreateMaceEngineFromProto(graph.data(), graph.size(), nullptr, 0, {"x"}, {"y"}, config, &engine);
  if (made != mace::MaceStatus::MACE_SUCCESS) return made;
  Tensors outputs = tensors("y");
  return engine->Run(tensors("x"), &outputs);
}

}  // namespace gpu

int main(int count, char **words) {
  if (count != 4) return 1;
  const mace::MaceStatus status = gpu::run(words + 1);
  std::printf("%d %s\n", status.code(), status.information().c_str());
  return status != mace::MaceStatus::MACE_SUCCESS;
}
