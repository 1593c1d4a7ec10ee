// The description of a network in generated code.

#ifndef MICRO_MODEL_H_
#define MICRO_MODEL_H_

#include "micro.h"

namespace micro {
namespace model {

// An input or output in the tensor memory.
struct Port {
  uint32_t offset, bytes, rank;
  const int32_t *dims;
};

class NetDef {
 public:
  int (*run)(const uint8_t *, uint8_t *, uint8_t *);
  const Port *inputs, *outputs;
  uint32_t input_count, output_count, weights_bytes;
  const char *name;
};

// The weights in a binary, moved to an aligned address inside it; NULL if it is not one of this network.
const uint8_t *WeightsOfBinary(uint8_t *binary, uint32_t size, const NetDef &net);

}  // namespace model
}  // namespace micro

#endif  // MICRO_MODEL_H_
