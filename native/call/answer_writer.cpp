// See answer_writer.h. https://protobuf.dev/programming-guides/encoding/
#include "answer_writer.h"

namespace sharded_infer::calls {
namespace {

// Fields of ModelInferResponse and of its InferOutputTensor.
constexpr int kModelName = 1, kModelVersion = 2, kResponseId = 3, kParameters = 4,
              kOutputTensors = 5, kRawContents = 6;
// Fields of an entry of its parameters, and of an InferParameter.
constexpr int kKey = 1, kValue = 2, kStringValue = 3;
constexpr int kTensorName = 1, kTensorType = 2, kTensorShape = 3;
// Fields of PredictResponse and of its Output.
constexpr int kRequestId = 3, kPredictOutputs = 4, kTiming = 5, kLabel = 8;
constexpr int kOutputName = 1, kOutputValues = 2, kOutputColumns = 3;
constexpr std::size_t kFloatBytes = sizeof(float);
constexpr char kFp32[] = "FP32";
constexpr char kLabelParameter[] = "label";

// Bytes of a field of bytes with a tag of one byte; none where it is empty.
std::uint64_t field_bytes(std::uint64_t size) {
  return size == 0 ? 0 : 1 + varint_bytes(size) + size;
}

std::uint64_t elements(const Scores& scores, std::int64_t samples) {
  return std::uint64_t(samples) * std::uint64_t(scores.columns == 0 ? 1 : scores.columns);
}

const float* of_sample(const Scores& scores, std::int64_t sample) {
  return scores.values + elements(scores, sample);
}

}  // namespace

void AnswerWriter::infer(const HeldCall& call, const Scores* scores, std::int64_t first,
                         std::int64_t samples) {
  const Route& route = *call.route;
  text(kModelName, route.name);
  text(kModelVersion, route.version_text);
  text(kResponseId, call.id);
  if (!call.label.empty()) {
    const std::uint64_t value = field_bytes(call.label.size());
    header(kParameters, field_bytes(sizeof kLabelParameter - 1) + field_bytes(value));
    bytes(kKey, kLabelParameter, sizeof kLabelParameter - 1);
    header(kValue, value);
    text(kStringValue, call.label);
  }
  for (std::size_t at = 0; at < route.outputs.size(); ++at) {
    if (!(call.outputs >> at & 1)) continue;
    const std::string& name = route.outputs[at];
    const std::int64_t columns = scores[at].columns;
    const std::uint64_t shape = varint_bytes(std::uint64_t(samples)) +
                                (columns == 0 ? 0 : varint_bytes(std::uint64_t(columns)));
    header(kOutputTensors,
           field_bytes(name.size()) + field_bytes(sizeof kFp32 - 1) + field_bytes(shape));
    text(kTensorName, name);
    bytes(kTensorType, kFp32, sizeof kFp32 - 1);
    header(kTensorShape, shape);
    varint(std::uint64_t(samples));
    if (columns != 0) varint(std::uint64_t(columns));
  }
  for (std::size_t at = 0; at < route.outputs.size(); ++at) {
    if (!(call.outputs >> at & 1)) continue;
    const std::uint64_t size = elements(scores[at], samples) * kFloatBytes;
    header(kRawContents, size);
    append(of_sample(scores[at], first), size);
  }
}

void AnswerWriter::predict(const HeldCall& call, const Scores* scores, std::int64_t first,
                           std::int64_t samples, const float seconds[4]) {
  const Route& route = *call.route;
  text(kModelName, route.name);
  number(kModelVersion, std::uint64_t(route.version));
  text(kRequestId, call.id);
  for (std::size_t at = 0; at < route.outputs.size(); ++at) {
    if (!(call.outputs >> at & 1)) continue;
    const std::string& name = route.outputs[at];
    const auto columns = std::uint64_t(scores[at].columns);
    const std::uint64_t size = elements(scores[at], samples) * kFloatBytes;
    header(kPredictOutputs, field_bytes(name.size()) + field_bytes(size) +
                                (columns == 0 ? 0 : 1 + varint_bytes(columns)));
    text(kOutputName, name);
    bytes(kOutputValues, of_sample(scores[at], first), size);
    number(kOutputColumns, columns);
  }
  header(kTiming, 4 * (1 + kFloatBytes));
  for (int at = 0; at < 4; ++at) {
    messages_.push_back(std::uint8_t((at + 1) << 3 | kFixed32));
    append(&seconds[at], kFloatBytes);
  }
  text(kLabel, call.label);
}

void AnswerWriter::varint(std::uint64_t value) {
  for (; value > 0x7f; value >>= 7) messages_.push_back(std::uint8_t(value & 0x7f) | 0x80);
  messages_.push_back(std::uint8_t(value));
}

// A number's field; nothing where it is 0.
void AnswerWriter::number(int field, std::uint64_t value) {
  if (value == 0) return;
  messages_.push_back(std::uint8_t(field << 3 | kVarint));
  varint(value);
}

// What stands before a field of bytes.
void AnswerWriter::header(int field, std::uint64_t bytes) {
  messages_.push_back(std::uint8_t(field << 3 | kBytes));
  varint(bytes);
}

// A field of bytes; nothing where it is empty.
void AnswerWriter::bytes(int field, const void* data, std::size_t size) {
  if (size == 0) return;
  header(field, size);
  append(data, size);
}

void AnswerWriter::text(int field, const std::string& text) {
  bytes(field, text.data(), text.size());
}

void AnswerWriter::append(const void* data, std::size_t size) {
  const auto* from = static_cast<const std::uint8_t*>(data);
  messages_.insert(messages_.end(), from, from + size);
}

}  // namespace sharded_infer::calls
