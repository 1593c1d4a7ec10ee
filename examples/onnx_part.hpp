// A part of a network as Tenon hands it to devices: an ONNX model with fixed shapes, read without protobuf.
//
// Enough for devices that know a few operators: nodes with their attributes, constants of f32 and i64, shapes of inputs and
// outputs.  Field numbers are those of onnx.proto.

#ifndef ONNX_PART_HPP
#define ONNX_PART_HPP

#include <cstdint>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace onnx_part {

using Dims = std::vector<int64_t>;

// A layer that a device does not run: the text is the reason.
struct Refusal : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Constant {
  Dims dims;
  int32_t type = 0; // 1: f32, 7: i64
  std::vector<uint8_t> bytes;
  const float *floats() const { return reinterpret_cast<const float *>(bytes.data()); }
};

struct Attribute {
  float number = 0;
  int64_t integer = 0;
  std::string text;
  Dims integers;
};

struct Node {
  std::string op, name;
  std::vector<std::string> inputs, outputs;
  std::map<std::string, Attribute> attributes;

  int64_t integer(const std::string &key, int64_t usual) const {
    const auto found = attributes.find(key);
    return found != attributes.end() ? found->second.integer : usual;
  }
  float number(const std::string &key, float usual) const {
    const auto found = attributes.find(key);
    return found != attributes.end() ? found->second.number : usual;
  }
  Dims integers(const std::string &key, const Dims &usual) const {
    const auto found = attributes.find(key);
    return found != attributes.end() ? found->second.integers : usual;
  }
  std::string text(const std::string &key) const {
    const auto found = attributes.find(key);
    return found != attributes.end() ? found->second.text : "";
  }
  bool has(size_t input) const { return input < inputs.size() && !inputs[input].empty(); }
};

struct Port {
  std::string name;
  Dims dims;
};

struct Part {
  std::vector<Node> nodes;
  std::map<std::string, Constant> constants;
  std::vector<Port> inputs, outputs; // inputs without the constants
};

// Fields of a protobuf message, one after another.
class Message {
 public:
  Message(const uint8_t *data, size_t size) : at_(data), end_(data + size) {}

  // The next field; false at the end.
  bool next() {
    if (at_ >= end_) return false;
    const uint64_t key = varint();
    number = static_cast<int>(key >> 3), wire_ = static_cast<int>(key & 7);
    if (wire_ == 0) value = varint();
    else if (wire_ == 2) size_ = varint(), data_ = taken(size_);
    else data_ = taken(size_ = wire_ == 5 ? 4 : 8);
    return true;
  }
  Message message() const { return Message(data_, size_); }
  std::string text() const { return std::string(reinterpret_cast<const char *>(data_), size_); }
  std::vector<uint8_t> bytes() const { return std::vector<uint8_t>(data_, data_ + size_); }
  float real() const {
    float result = 0;
    if (size_ == 4) std::memcpy(&result, data_, 4);
    return result;
  }
  // Integers of a repeated field, which may be packed.
  void integers(Dims &to) const {
    if (wire_ == 0) return to.push_back(static_cast<int64_t>(value));
    for (Message packed = message(); packed.at_ < packed.end_;) to.push_back(static_cast<int64_t>(packed.varint()));
  }

  int number = 0;
  uint64_t value = 0;

 private:
  uint64_t varint() {
    uint64_t result = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const uint8_t byte = *taken(1);
      result |= static_cast<uint64_t>(byte & 127) << shift;
      if (byte < 128) return result;
    }
    throw Refusal("cannot read the part");
  }
  const uint8_t *taken(uint64_t count) {
    if (count > static_cast<uint64_t>(end_ - at_)) throw Refusal("cannot read the part");
    at_ += count;
    return at_ - count;
  }

  const uint8_t *at_, *end_, *data_ = nullptr;
  uint64_t size_ = 0;
  int wire_ = 0;
};

inline Attribute attribute_of(Message fields, std::string &name) {
  Attribute made;
  while (fields.next())
    switch (fields.number) {
    case 1: name = fields.text(); break;
    case 2: made.number = fields.real(); break;
    case 3: made.integer = static_cast<int64_t>(fields.value); break;
    case 4: made.text = fields.text(); break;
    case 8: fields.integers(made.integers); break;
    default: break;
    }
  return made;
}

inline Node node_of(Message fields) {
  Node made;
  std::string key;
  while (fields.next())
    switch (fields.number) {
    case 1: made.inputs.push_back(fields.text()); break;
    case 2: made.outputs.push_back(fields.text()); break;
    case 3: made.name = fields.text(); break;
    case 4: made.op = fields.text(); break;
    case 5: {
      const Attribute attribute = attribute_of(fields.message(), key);
      made.attributes[key] = attribute;
      break;
    }
    default: break;
    }
  return made;
}

inline Constant constant_of(Message fields, std::string &name) {
  Constant made;
  while (fields.next())
    switch (fields.number) {
    case 1: fields.integers(made.dims); break;
    case 2: made.type = static_cast<int32_t>(fields.value); break;
    case 4: made.bytes = fields.bytes(); break; // packed floats
    case 8: name = fields.text(); break;
    case 9: made.bytes = fields.bytes(); break;
    default: break;
    }
  return made;
}

inline Dims shape_of(Message fields) {
  Dims dims;
  while (fields.next())
    if (fields.number == 1)
      for (Message dim = fields.message(); dim.next();)
        if (dim.number == 1) dims.push_back(static_cast<int64_t>(dim.value));
  return dims;
}

inline Port port_of(Message fields) {
  Port made;
  while (fields.next()) {
    if (fields.number == 1) made.name = fields.text();
    if (fields.number != 2) continue;
    for (Message type = fields.message(); type.next();)
      if (type.number == 1)
        for (Message tensor = type.message(); tensor.next();) {
          if (tensor.number == 1 && tensor.value != 1) throw Refusal("takes floats of 32 bits alone");
          if (tensor.number == 2) made.dims = shape_of(tensor.message());
        }
  }
  return made;
}

// Throws Refusal if it is damaged, or if its inputs or outputs are no floats.
inline Part read(const void *onnx, size_t bytes) {
  Part part;
  std::string name;
  for (Message model(static_cast<const uint8_t *>(onnx), bytes); model.next();) {
    if (model.number != 7) continue;
    for (Message graph = model.message(); graph.next();) switch (graph.number) {
      case 1: part.nodes.push_back(node_of(graph.message())); break;
      case 5: {
        const Constant constant = constant_of(graph.message(), name);
        part.constants[name] = constant;
        break;
      }
      case 11: part.inputs.push_back(port_of(graph.message())); break;
      case 12: part.outputs.push_back(port_of(graph.message())); break;
      default: break;
      }
  }
  std::vector<Port> inputs;
  for (const Port &port : part.inputs)
    if (part.constants.count(port.name) == 0) inputs.push_back(port);
  part.inputs = inputs;
  return part;
}

inline int64_t elements(const Dims &dims) {
  int64_t count = 1;
  for (const int64_t extent : dims) count *= extent;
  return count;
}

} // namespace onnx_part

#endif
