// PredictRequests: their header, and Request::scan_predict. See header.h, request.h and
// protos/sharded_infer/v1/predictor.proto, whose field numbers these are.
#include "header.h"
#include "layout.h"
#include "predict_inputs.h"

namespace sharded_infer {
namespace {

enum PredictField : std::uint32_t {
  kModel = 1,
  kModelVersion = 2,
  kRequestId = 3,
  kPriority = 4,
  kOutputNames = 5,
  kUser = 6,
  kCandidates = 7,
  kReportsUnknown = 8,
  kTextKey = 9,
  kNumberKey = 10,
};

constexpr std::int64_t kNumberKeyBytes = 8;

}  // namespace

bool read_predict_header(Bytes message, Header& header) {
  clear(header);
  WireReader reader(message);
  std::uint32_t seen = 0;
  while (!reader.done()) {
    std::uint32_t field, type;
    if (!reader.read_tag(field, type)) return false;
    if (field != kOutputNames && !first_time(seen, field)) return false;
    if (field == kNumberKey) {
      // Of two keys the last one counts: unusual.
      if (type != kFixed64 || header.key.size != 0) return false;
      header.key = {reader.at() - message.data, kNumberKeyBytes};
      if (!reader.skip(kNumberKeyBytes)) return false;
      continue;
    }
    if (field == kPriority) {
      std::uint64_t number;
      if (type != kVarint || !reader.read_varint(number) || number >> 32) return false;
      header.priority = static_cast<std::int64_t>(number);
      continue;
    }
    if (field == kReportsUnknown) {
      std::uint64_t number;
      if (type != kVarint || !reader.read_varint(number)) return false;
      header.reports_unknown = number != 0;
      continue;
    }
    Bytes bytes;
    if (type != kBytes || !reader.read_bytes(bytes)) return false;
    if (field == kUser || field == kCandidates) continue;
    if (!is_ascii(bytes)) return false;
    const Text text{bytes.data - message.data, bytes.size};
    switch (field) {
      case kModel: header.name = text; break;
      case kModelVersion: header.version = text; break;
      case kRequestId: header.id = text; break;
      case kTextKey:
        if (header.key.size != 0) return false;
        header.key = text;
        break;
      case kOutputNames:
        if (!add_output(message, bytes, Span(), header)) return false;
        break;
      default: return false;
    }
  }
  return true;
}

bool Request::scan_predict(Bytes message) {
  begin();
  if (message.size >= kMaxSize) return false;
  PredictInputs inputs(*this, message);
  WireReader reader(message);
  std::uint32_t seen = 0;
  while (!reader.done()) {
    std::uint32_t field, type;
    if (!reader.read_tag(field, type)) return false;
    if (field != kOutputNames && !first_time(seen, field)) return false;
    if (field == kPriority || field == kReportsUnknown) {
      std::uint64_t number;
      if (type != kVarint || !reader.read_varint(number)) return false;
      continue;
    }
    if (field == kNumberKey) {
      if (type != kFixed64 || !reader.skip(kNumberKeyBytes)) return false;
      continue;
    }
    Bytes bytes;
    if (type != kBytes || !reader.read_bytes(bytes)) return false;
    if (field > kTextKey) return false;
    if (field == kUser || field == kCandidates ? !inputs.read(bytes, field == kUser)
                                               : !is_ascii(bytes))
      return false;
  }
  if (!inputs.has_row_for_each()) return false;
  return inputs.inputs() > 0 && lay_out(*this, inputs.inputs());
}

}  // namespace sharded_infer
