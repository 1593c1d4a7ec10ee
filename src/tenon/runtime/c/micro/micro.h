// MACE Micro's C++ API (C++98; no exceptions, no heap) for a network that is compiled in.

#ifndef MICRO_INCLUDE_PUBLIC_MICRO_H_
#define MICRO_INCLUDE_PUBLIC_MICRO_H_

#include <stddef.h>
#include <stdint.h>

namespace micro {

enum DataFormat { NONE = 0, NHWC = 1, NCHW = 2, HWOI = 100, OIHW = 101, HWIO = 102, OHWI = 103, AUTO = 1000 };

enum PerfHint { PERF_DEFAULT = 0, PERF_LOW = 1, PERF_NORMAL = 2, PERF_HIGH = 3 };

enum DataType {
  DT_INVALID = 0, DT_FLOAT = 1, DT_UINT8 = 2, DT_HALF = 3, DT_INT32 = 4, DT_FLOAT16 = 5, DT_BFLOAT16 = 6
};

enum MaceStatus {
  MACE_SUCCESS = 0, MACE_INVALID_ARGS = 1, MACE_OUT_OF_RESOURCES = 2, MACE_UNSUPPORTED = 3, MACE_RUNTIME_ERROR = 4
};

namespace model {
class NetDef;
}

namespace framework {
class Graph;
class Operator;
}

// The network and its memory; all of it is static, and made by the generated code.
struct MaceMicroEngineConfig {
  model::NetDef *net_def_;
  const uint8_t *model_data_;      // the weights
  framework::Graph *graph_;        // NULL
  framework::Operator **op_array_; // NULL
  uint8_t *tensor_mem_;            // inputs and outputs
  const void **input_buffers_;
  const int32_t **input_shapes_;
  uint8_t *scratch_buffer_;        // intermediate results
  uint32_t scratch_buffer_size_;
};

class MaceMicroEngine {
 public:
  // Without a destructor, so that nothing has to be registered for the program's end.
  MaceMicroEngine() : engine_config_(NULL), initialized_(false), has_run_(false) {}

  MaceStatus Init(MaceMicroEngineConfig *engine_config);

  // The buffer is read by every run.  MACE_INVALID_ARGS: no such input, NULL, or a shape other than the network's.
  MaceStatus RegisterInputData(uint32_t idx, const void *input_buffer, const int32_t *input_dims);

  // MACE_INVALID_ARGS: an input without a buffer; MACE_RUNTIME_ERROR: before Init.
  MaceStatus Run();

  // Valid until the next run.  MACE_RUNTIME_ERROR: before the first.
  MaceStatus GetOutputData(const uint32_t idx, void **output_data, const int32_t **output_dims,
                           uint32_t *output_dim_size);

  // MACE_UNSUPPORTED: results of operators share memory, and few remain.
  MaceStatus GetOpOutputData(const uint32_t op_def_idx, const uint32_t output_idx, void **output_data,
                             const int32_t **output_dims, uint32_t *output_dim_size);

  MaceMicroEngineConfig *GetEngineConfig() { return engine_config_; }

 private:
  MaceMicroEngineConfig *engine_config_;
  bool initialized_, has_run_;

  MaceMicroEngine(const MaceMicroEngine &);
  MaceMicroEngine &operator=(const MaceMicroEngine &);
};

// MACE_UNSUPPORTED: a binary holds weights, and the network's code is that of a model: use
// micro::<model>::CreateMaceMicroEngineFromBinary.
MaceStatus CreateMaceMicroEngineFromBinary(uint8_t *model_data, uint32_t size, framework::Operator **op_array,
                                           uint32_t input_num, MaceMicroEngine **engine);

void DestroyMicroEngineFromBinary(micro::MaceMicroEngine *engine);

}  // namespace micro

#endif  // MICRO_INCLUDE_PUBLIC_MICRO_H_
