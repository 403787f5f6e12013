// The fields of a ModelInferRequest, one after another, to a visitor.
//
// A visitor has `text(field, Bytes)` for kName, kVersion and kId, `parameter(const Parameter&)`,
// `input(Bytes)`, `output(Bytes name, const Span&)` and `contents(Bytes)`; each says whether to go
// on.
#pragma once
#include "parameter.h"

namespace sharded_infer {

enum RequestField : std::uint32_t {
  kName = 1,
  kVersion = 2,
  kId = 3,
  kParameters = 4,
  kInputs = 5,
  kOutputs = 6,
  kContents = 7,
};

// A requested output's name, and its place in shared memory.
inline bool read_output(Bytes message, Bytes& name, Span& span) {
  WireReader reader(message);
  std::uint32_t field, type;
  if (!reader.read_tag(field, type) || field != 1 || type != kBytes) return false;
  if (!reader.read_bytes(name) || !is_ascii(name)) return false;
  while (!reader.done()) {
    Bytes bytes;
    if (!reader.read_tag(field, type) || field != 2 || type != kBytes) return false;
    if (!reader.read_bytes(bytes) || !read_span_parameter(bytes, span)) return false;
  }
  return span.is_none() || span.is_whole();
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
        Span span;
        if (!read_output(bytes, name, span) || !visitor.output(name, span)) return false;
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
