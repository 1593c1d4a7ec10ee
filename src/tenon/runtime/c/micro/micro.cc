// The engine of MACE Micro's API over a network's entry point.

#include "micro_model.h"

namespace micro {

namespace {

void Copy(uint8_t *to, const void *from, uint32_t bytes) {
  const uint8_t *at = static_cast<const uint8_t *>(from);
  for (uint32_t i = 0; i < bytes; ++i) to[i] = at[i];
}

}  // namespace

MaceStatus MaceMicroEngine::Init(MaceMicroEngineConfig *engine_config) {
  if (engine_config == NULL || engine_config->net_def_ == NULL) return MACE_INVALID_ARGS;
  engine_config_ = engine_config;
  initialized_ = true;
  has_run_ = false;
  for (uint32_t i = 0; i < engine_config->net_def_->input_count; ++i) engine_config->input_buffers_[i] = NULL;
  return MACE_SUCCESS;
}

MaceStatus MaceMicroEngine::RegisterInputData(uint32_t idx, const void *input_buffer, const int32_t *input_dims) {
  if (!initialized_) return MACE_RUNTIME_ERROR;
  const model::NetDef &net = *engine_config_->net_def_;
  if (idx >= net.input_count || input_buffer == NULL || input_dims == NULL) return MACE_INVALID_ARGS;
  const model::Port &port = net.inputs[idx];
  for (uint32_t i = 0; i < port.rank; ++i)
    if (input_dims[i] != port.dims[i]) return MACE_INVALID_ARGS;
  engine_config_->input_buffers_[idx] = input_buffer;
  engine_config_->input_shapes_[idx] = port.dims;
  return MACE_SUCCESS;
}

MaceStatus MaceMicroEngine::Run() {
  if (!initialized_) return MACE_RUNTIME_ERROR;
  const MaceMicroEngineConfig &config = *engine_config_;
  const model::NetDef &net = *config.net_def_;
  for (uint32_t i = 0; i < net.input_count; ++i) {
    if (config.input_buffers_[i] == NULL) return MACE_INVALID_ARGS;
    Copy(config.tensor_mem_ + net.inputs[i].offset, config.input_buffers_[i], net.inputs[i].bytes);
  }
  if (net.run(config.model_data_, config.tensor_mem_, config.scratch_buffer_) != 0) return MACE_RUNTIME_ERROR;
  has_run_ = true;
  return MACE_SUCCESS;
}

MaceStatus MaceMicroEngine::GetOutputData(const uint32_t idx, void **output_data, const int32_t **output_dims,
                                          uint32_t *output_dim_size) {
  if (!initialized_ || !has_run_) return MACE_RUNTIME_ERROR;
  const model::NetDef &net = *engine_config_->net_def_;
  if (idx >= net.output_count || output_data == NULL || output_dims == NULL || output_dim_size == NULL)
    return MACE_INVALID_ARGS;
  *output_data = engine_config_->tensor_mem_ + net.outputs[idx].offset;
  *output_dims = net.outputs[idx].dims;
  *output_dim_size = net.outputs[idx].rank;
  return MACE_SUCCESS;
}

MaceStatus MaceMicroEngine::GetOpOutputData(const uint32_t, const uint32_t, void **, const int32_t **, uint32_t *) {
  return MACE_UNSUPPORTED;
}

MaceStatus CreateMaceMicroEngineFromBinary(uint8_t *, uint32_t, framework::Operator **, uint32_t, MaceMicroEngine **) {
  return MACE_UNSUPPORTED;
}

void DestroyMicroEngineFromBinary(micro::MaceMicroEngine *) {}

namespace model {

namespace {
enum { HEADER = 48, ALIGNMENT = 64 };

// Little-endian, of 8 bytes; more than 32 bits are too many.
uint32_t entry(const uint8_t *header, uint32_t number) {
  const uint8_t *at = header + 8 * number;
  if (at[4] | at[5] | at[6] | at[7]) return 0xFFFFFFFFu;
  return at[0] | at[1] << 8 | at[2] << 16 | static_cast<uint32_t>(at[3]) << 24;
}
}  // namespace

// Offsets of name, graph (empty), weights and their end, then bytes of tensor memory and of scratch.  Behind the weights
// are ALIGNMENT bytes, so that they can be moved.
const uint8_t *WeightsOfBinary(uint8_t *binary, uint32_t size, const NetDef &net) {
  if (binary == NULL || size < HEADER || entry(binary, 0) != HEADER) return NULL;
  const uint32_t begin = entry(binary, 2), end = entry(binary, 3);
  uint32_t name = 1;
  while (net.name[name - 1] != 0) ++name;
  if (begin > end || end > size || end - begin != net.weights_bytes) return NULL;
  if (entry(binary, 1) != HEADER + name || begin < HEADER + name) return NULL;
  for (uint32_t i = 0; i < name; ++i)
    if (binary[HEADER + i] != static_cast<uint8_t>(net.name[i])) return NULL;
  const uint32_t beyond = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(binary + begin) % ALIGNMENT);
  const uint32_t moved = beyond == 0 ? 0 : ALIGNMENT - beyond;
  if (moved == 0) return binary + begin;
  if (size - end < moved) return NULL;
  for (uint32_t i = net.weights_bytes; i > 0; --i) binary[begin + moved + i - 1] = binary[begin + i - 1];
  for (uint32_t number = 2; number < 4; ++number) {  // where they are when the binary is opened again
    const uint32_t at = entry(binary, number) + moved;
    for (uint32_t i = 0; i < 4; ++i) binary[8 * number + i] = static_cast<uint8_t>(at >> (8 * i));
  }
  return binary + begin + moved;
}

}  // namespace model
}  // namespace micro
