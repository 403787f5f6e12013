// One entry of a request's `parameters` map: a key and an InferParameter.
#pragma once
#include "wire.h"

namespace sharded_infer {

// Field numbers of InferParameter.
enum ParameterKind : std::uint32_t { kBool = 1, kInt64 = 2, kString = 3, kDouble = 4, kUint64 = 5 };

struct Parameter {
  Bytes key;
  std::uint32_t kind = 0;
  std::uint64_t number = 0;  // of kBool, kInt64 and kUint64
  Bytes text;                // of kString

  bool is(const char* name) const { return sharded_infer::is(key, name); }

  // Whether it asks for unknown ids by table, which only Python tells.
  bool asks_for_unknown_ids() const { return is("unknown_ids"); }
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

}  // namespace sharded_infer
