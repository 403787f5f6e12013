// The fields of a ModelInferRequest, one after another, to a visitor; and its parameters.
//
// A visitor has `text(field, Bytes)` for kName, kVersion and kId, `parameter(const Parameter&)`,
// `input(Bytes)`, `output(Bytes name)` and `contents(Bytes)`; each says whether to go on.
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

enum RequestField : std::uint32_t {
  kName = 1,
  kVersion = 2,
  kId = 3,
  kParameters = 4,
  kInputs = 5,
  kOutputs = 6,
  kContents = 7,
};

// A requested output's name; one with parameters is unusual.
inline bool read_output(Bytes message, Bytes& name) {
  WireReader reader(message);
  std::uint32_t field, type;
  if (!reader.read_tag(field, type) || field != 1 || type != kBytes) return false;
  return reader.read_bytes(name) && reader.done() && is_ascii(name);
}

template <class Visitor>
bool visit_request(Bytes message, Visitor& visitor) {
  WireReader reader(message);
  std::uint32_t seen = 0;
  while (!reader.done()) {
    std::uint32_t field, type;
    Bytes bytes;
    if (!reader.read_tag(field, type) || type != kBytes || !reader.read_bytes(bytes)) return false;
    switch (field) {
      case kName:
      case kVersion:
      case kId:
        if ((seen >> field & 1) || !is_ascii(bytes) || !visitor.text(field, bytes)) return false;
        seen |= 1u << field;
        break;
      case kParameters: {
        Parameter parameter;
        if (!read_parameter(bytes, parameter) || !visitor.parameter(parameter)) return false;
        break;
      }
      case kInputs:
        if (!visitor.input(bytes)) return false;
        break;
      case kOutputs: {
        Bytes name;
        if (!read_output(bytes, name) || !visitor.output(name)) return false;
        break;
      }
      case kContents:
        if (!visitor.contents(bytes)) return false;
        break;
      default: return false;
    }
  }
  return true;
}

}  // namespace sharded_infer
