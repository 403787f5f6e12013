// See answer_writer.h.
#include "answer_writer.h"

#include <charconv>
#include <cmath>

namespace sharded_infer::call {
namespace {

// Fields of ModelInferResponse, of its InferOutputTensor, of an entry of parameters, and of an
// InferParameter.
constexpr int kModelName = 1, kModelVersion = 2, kResponseId = 3, kParameters = 4,
              kOutputTensors = 5, kRawContents = 6;
constexpr int kTensorName = 1, kTensorType = 2, kTensorShape = 3, kTensorParameters = 4;
constexpr int kKey = 1, kValue = 2, kBoolValue = 1, kInt64Value = 2, kStringValue = 3;
// Fields of PredictResponse, of its Output, and of its UnknownIds.
constexpr int kRequestId = 3, kPredictOutputs = 4, kTiming = 5, kDefaultTables = 6, kUnknownIds = 7,
              kLabel = 8;
constexpr int kOutputName = 1, kOutputValues = 2, kOutputColumns = 3;
constexpr int kUnknownTable = 1, kUnknownCount = 2;
// Fields of ModelStreamInferResponse.
constexpr int kErrorMessage = 1, kInferResponse = 2;
constexpr std::string_view kFp32 = "FP32", kLabelParameter = "label",
                           kDefaultTablesParameter = "sharded_infer_default_tables",
                           kFinalParameter = "triton_final_response";

std::uint64_t elements(const Scores& scores, std::int64_t samples) {
  return std::uint64_t(samples) * std::uint64_t(scores.columns == 0 ? 1 : scores.columns);
}

const PlacedOutput* placed_of(const Call& call, std::size_t output) {
  for (const PlacedOutput& placed : call.placed)
    if (std::size_t(placed.output) == output) return &placed;
  return nullptr;
}

std::string joined(const std::vector<const char*>& tables) {
  std::string names;
  for (const char* table : tables) names.append(names.empty() ? "" : ",").append(table);
  return names;
}

std::string unknown_parameter(const char* table) { return std::string("unknown_ids.") + table; }

}  // namespace

std::string_view bytes_of(const Scores& scores, std::int64_t first, std::int64_t samples) {
  const float* values = scores.values + elements(scores, first);
  return {reinterpret_cast<const char*>(values), elements(scores, samples) * sizeof(float)};
}

std::string http_lines(std::int64_t json_bytes, std::int64_t bytes) {
  std::string lines = "200 OK\r\n";
  if (json_bytes != 0)
    lines += "Inference-Header-Content-Length: " + std::to_string(json_bytes) + "\r\n";
  lines += "Vary: Accept-Encoding\r\ncontent-type: application/";
  lines += json_bytes != 0 ? "octet-stream" : "json";
  return lines + "\r\ncontent-length: " + std::to_string(bytes) + "\r\n";
}

std::int64_t AnswerWriter::write(const Call& call, const CallScores& scores) {
  switch (call.form) {
    case kPredict: predict(call, scores); break;
    case kStream: stream(call, scores); break;
    case kJson: return json(call, scores);
    default: infer(call, scores); break;
  }
  return 0;
}

void AnswerWriter::infer(const Call& call, const CallScores& scores) {
  const Route& route = *call.route;
  field(kModelName, route.name);
  field(kModelVersion, route.version_text);
  field(kResponseId, call.id);
  infer_parameters(call, scores);
  for (std::size_t at = 0; at < route.outputs.size(); ++at)
    if (call.outputs[at]) infer_output(call, scores, at);
  for (std::size_t at = 0; at < route.outputs.size(); ++at) {
    if (!call.outputs[at]) continue;
    // Clients look for each output's contents at its position.
    std::string_view contents;
    if (placed_of(call, at) == nullptr)
      contents = bytes_of(scores.outputs[at], scores.first, call.samples());
    header(kRawContents, contents.size());
    append(contents);
  }
}

void AnswerWriter::infer_parameters(const Call& call, const CallScores& scores) {
  if (!call.label.empty()) string_parameter(kParameters, kLabelParameter, call.label);
  if (!scores.default_tables.empty())
    string_parameter(kParameters, kDefaultTablesParameter, joined(scores.default_tables));
  for (const auto& [table, count] : scores.unknown_ids)
    number_parameter(kParameters, unknown_parameter(table), count);
}

void AnswerWriter::infer_output(const Call& call, const CallScores& scores, std::size_t at) {
  const std::size_t tensor = open(kOutputTensors);
  field(kTensorName, call.route->outputs[at]);
  field(kTensorType, kFp32);
  const std::int64_t columns = scores.outputs[at].columns;
  const std::size_t shape = open(kTensorShape);
  varint(std::uint64_t(call.samples()));
  if (columns != 0) varint(std::uint64_t(columns));
  close(shape);
  if (const PlacedOutput* placed = placed_of(call, at)) {
    string_parameter(kTensorParameters, "shared_memory_region",
                     {static_cast<const char*>(placed->region), std::size_t(placed->region_bytes)});
    const std::string_view bytes = bytes_of(scores.outputs[at], scores.first, call.samples());
    number_parameter(kTensorParameters, "shared_memory_byte_size", std::int64_t(bytes.size()));
    if (placed->offset != 0)
      number_parameter(kTensorParameters, "shared_memory_offset", placed->offset);
  }
  close(tensor);
}

void AnswerWriter::predict(const Call& call, const CallScores& scores) {
  const Route& route = *call.route;
  field(kModelName, route.name);
  number(kModelVersion, std::uint64_t(route.version));
  field(kRequestId, call.id);
  for (std::size_t at = 0; at < route.outputs.size(); ++at) {
    if (!call.outputs[at]) continue;
    const auto columns = std::uint64_t(scores.outputs[at].columns);
    const std::string_view values = bytes_of(scores.outputs[at], scores.first, call.samples());
    const std::size_t output = open(kPredictOutputs);
    field(kOutputName, route.outputs[at]);
    field(kOutputValues, values);
    number(kOutputColumns, columns);
    close(output);
  }
  header(kTiming, 4 * (1 + sizeof(float)));
  for (int at = 0; at < 4; ++at) {
    bytes_.push_back(std::uint8_t((at + 1) << 3 | kFixed32));
    append({reinterpret_cast<const char*>(&scores.seconds[at]), sizeof(float)});
  }
  for (const char* table : scores.default_tables) field(kDefaultTables, table);
  for (const auto& [table, count] : scores.unknown_ids) {
    const std::size_t unknown = open(kUnknownIds);
    field(kUnknownTable, table);
    number(kUnknownCount, std::uint64_t(count));
    close(unknown);
  }
  field(kLabel, call.label);
}

void AnswerWriter::stream(const Call& call, const CallScores& scores) {
  const std::size_t response = open(kInferResponse);
  infer(call, scores);
  final_parameter();
  close(response);
}

void AnswerWriter::stream_error(const Call& call, std::string_view words) {
  field(kErrorMessage, words);
  const std::size_t response = open(kInferResponse);
  field(kModelName, call.route->name);
  field(kModelVersion, call.route->version_text);
  field(kResponseId, call.id);
  final_parameter();
  close(response);
}

// Every message of a stream has one answer, so each is marked as final.
void AnswerWriter::final_parameter() {
  const std::size_t parameter = open(kParameters);
  field(kKey, kFinalParameter);
  const std::size_t value = open(kValue);
  number(kBoolValue, 1);
  close(value);
  close(parameter);
}

// As in Triton's answers, only outputs in binary have `parameters`: Triton's C++ client treats any
// as those of such an output. Of an output in shared memory the client knows the region.
std::int64_t AnswerWriter::json(const Call& call, const CallScores& scores) {
  const Route& route = *call.route;
  const std::size_t begin = bytes_.size();
  append("{");
  json_member("model_name", route.name);
  append(",");
  json_member("model_version", route.version_text);
  if (!call.id.empty()) {
    append(",");
    json_member("id", call.id);
  }
  const char* next = ",\"parameters\":{";
  const auto parameter = [&](std::string_view name, auto write) {
    append(next);
    next = ",";
    json_text(name);
    append(":");
    write();
  };
  for (const auto& [table, count] : scores.unknown_ids)
    parameter(unknown_parameter(table), [&, n = count] { append(std::to_string(n)); });
  if (!call.label.empty()) parameter(kLabelParameter, [&] { json_text(call.label); });
  if (!scores.default_tables.empty())
    parameter(kDefaultTablesParameter, [&] { json_text(joined(scores.default_tables)); });
  append(next[0] == ',' && next[1] == '\0' ? "},\"outputs\":[" : ",\"outputs\":[");
  std::string binary;
  bool has_binary = false, is_first = true;
  for (std::size_t at = 0; at < route.outputs.size(); ++at) {
    if (!call.outputs[at]) continue;
    append(is_first ? "{" : ",{");
    is_first = false;
    json_member("name", route.outputs[at]);
    append(",\"datatype\":\"FP32\",\"shape\":[" + std::to_string(call.samples()));
    const std::int64_t columns = scores.outputs[at].columns;
    if (columns != 0) append("," + std::to_string(columns));
    append("]");
    const std::string_view values = bytes_of(scores.outputs[at], scores.first, call.samples());
    if (placed_of(call, at) != nullptr) {
    } else if (call.outputs[at] == 2) {
      append(",\"parameters\":{\"binary_data_size\":" + std::to_string(values.size()) + "}");
      binary += values;
      has_binary = true;
    } else {
      append(",\"data\":[");
      json_scores(reinterpret_cast<const float*>(values.data()), values.size() / sizeof(float));
      append("]");
    }
    append("}");
  }
  append("]}");
  const std::size_t size = bytes_.size() - begin;
  append(binary);
  return has_binary ? std::int64_t(size) : 0;
}

void AnswerWriter::varint(std::uint64_t value) {
  for (; value > 0x7f; value >>= 7) bytes_.push_back(std::uint8_t(value & 0x7f) | 0x80);
  bytes_.push_back(std::uint8_t(value));
}

// A number's field; nothing where it is 0.
void AnswerWriter::number(int field, std::uint64_t value) {
  if (value == 0) return;
  bytes_.push_back(std::uint8_t(field << 3 | kVarint));
  varint(value);
}

// The tag and size of a field of bytes.
void AnswerWriter::header(int field, std::uint64_t bytes) {
  bytes_.push_back(std::uint8_t(field << 3 | kBytes));
  varint(bytes);
}

// A field of bytes; nothing where it is empty.
void AnswerWriter::field(int field, std::string_view bytes) {
  if (bytes.empty()) return;
  header(field, bytes.size());
  append(bytes);
}

void AnswerWriter::string_parameter(int field, std::string_view key, std::string_view value) {
  const std::size_t parameter = open(field);
  this->field(kKey, key);
  const std::size_t choice = open(kValue);
  header(kStringValue, value.size());
  append(value);
  close(choice);
  close(parameter);
}

void AnswerWriter::number_parameter(int field, std::string_view key, std::int64_t value) {
  const std::size_t parameter = open(field);
  this->field(kKey, key);
  const std::size_t choice = open(kValue);
  bytes_.push_back(kInt64Value << 3 | kVarint);
  varint(std::uint64_t(value));
  close(choice);
  close(parameter);
}

// Begins a field whose size is not known before `close` of what this returns.
std::size_t AnswerWriter::open(int field) {
  header(field, 0);
  return bytes_.size();
}

void AnswerWriter::close(std::size_t begin) {
  std::uint64_t size = bytes_.size() - begin;
  std::uint8_t digits[10];
  int count = 0;
  for (; size > 0x7f; size >>= 7) digits[count++] = std::uint8_t(size & 0x7f) | 0x80;
  digits[count++] = std::uint8_t(size);
  bytes_[begin - 1] = digits[0];
  bytes_.insert(bytes_.begin() + std::ptrdiff_t(begin), digits + 1, digits + count);
}

void AnswerWriter::json_text(std::string_view text) {
  static const char digits[] = "0123456789abcdef";
  bytes_.push_back('"');
  for (const char letter : text) {
    const auto byte = std::uint8_t(letter);
    if (byte < 0x20) {
      append("\\u00");
      bytes_.push_back(std::uint8_t(digits[byte >> 4]));
      bytes_.push_back(std::uint8_t(digits[byte & 15]));
      continue;
    }
    if (letter == '"' || letter == '\\') bytes_.push_back('\\');
    bytes_.push_back(byte);
  }
  bytes_.push_back('"');
}

void AnswerWriter::json_member(const char* name, std::string_view text) {
  json_text(name);
  append(":");
  json_text(text);
}

// The doubles of the scores, in the fewest digits; null for those that JSON lacks.
void AnswerWriter::json_scores(const float* values, std::uint64_t count) {
  char text[32];
  for (std::uint64_t at = 0; at < count; ++at) {
    if (at != 0) append(",");
    if (!std::isfinite(values[at])) {
      append("null");
      continue;
    }
    const auto written = std::to_chars(text, text + sizeof text, double(values[at]));
    const std::string_view number(text, std::size_t(written.ptr - text));
    append(number);
    if (number.find_first_of(".e") == number.npos) append(".0");
  }
}

}  // namespace sharded_infer::call
