// Parameters of a ModelInferRequest and of its tensors, and what they say of shared memory.
#pragma once
#include "base/wire.h"

namespace sharded_infer {

// Field numbers of InferParameter.
enum ParameterKind : std::uint32_t { kBool = 1, kInt64 = 2, kString = 3, kDouble = 4, kUint64 = 5 };

// An entry of a request's `parameters` map: a key and an InferParameter.
struct Parameter {
  Bytes key;
  std::uint32_t kind = 0;
  std::uint64_t number = 0;  // of kBool, kInt64 and kUint64
  Bytes text;                // of kString

  bool is(const char* name) const { return sharded_infer::is(key, name); }
};

inline bool read_parameter_value(Bytes message, Parameter& parameter) {
  WireReader reader(message);
  std::uint32_t type;
  if (!reader.read_tag(parameter.kind, type)) return false;
  switch (parameter.kind) {
    case kBool:
    case kInt64:
    case kUint64:
      if (type != kVarint || !reader.read_varint(parameter.number)) return false;
      break;
    case kString:
      if (type != kBytes || !reader.read_bytes(parameter.text) || !is_ascii(parameter.text))
        return false;
      break;
    case kDouble:
      if (type != kFixed64 || !reader.skip(8)) return false;
      break;
    default: return false;
  }
  return reader.done();
}

// The usual form only: the key, then the value, each once.
inline bool read_parameter(Bytes message, Parameter& parameter) {
  WireReader reader(message);
  std::uint32_t field, type;
  Bytes value;
  if (!reader.read_tag(field, type) || field != 1 || type != kBytes) return false;
  if (!reader.read_bytes(parameter.key) || !is_ascii(parameter.key)) return false;
  if (!reader.read_tag(field, type) || field != 2 || type != kBytes) return false;
  return reader.read_bytes(value) && reader.done() && read_parameter_value(value, parameter);
}

// A part of a region of shared memory, as a tensor's parameters name it.
struct Span {
  Bytes region;
  std::int64_t offset = -1;  // -1: not given, as 0
  std::int64_t bytes = -1;

  bool is_none() const { return region.size == 0 && offset < 0 && bytes < 0; }
  bool is_whole() const { return region.size > 0 && bytes >= 0; }
  std::int64_t begin() const { return offset < 0 ? 0 : offset; }

  // False for a parameter that came already, is malformed, or is of something else.
  bool add(const Parameter& parameter) {
    if (parameter.is("shared_memory_region")) {
      if (region.size > 0 || parameter.kind != kString) return false;
      region = parameter.text;
      return region.size > 0;
    }
    const bool is_size = parameter.is("shared_memory_byte_size");
    if (!is_size && !parameter.is("shared_memory_offset")) return false;
    std::int64_t& number = is_size ? bytes : offset;
    const bool is_whole_number = parameter.kind == kInt64 || parameter.kind == kUint64;
    if (number >= 0 || !is_whole_number || parameter.number >> 63) return false;
    number = static_cast<std::int64_t>(parameter.number);
    return true;
  }
};

inline bool read_span_parameter(Bytes message, Span& span) {
  Parameter parameter;
  return read_parameter(message, parameter) && span.add(parameter);
}

}  // namespace sharded_infer
