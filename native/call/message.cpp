// See message.h.
#include "message.h"

#include <algorithm>

#include "transport/request_head.h"

namespace sharded_infer::call {
namespace {

constexpr std::int64_t kMostJsonBytes = 16 << 20;  // MOST_JSON_BYTES of json_reader.py
constexpr std::size_t kMostDigits = 15;            // of a body's length

bool take_prefix(std::string_view& text, std::string_view prefix) {
  if (text.substr(0, prefix.size()) != prefix) return false;
  text.remove_prefix(prefix.size());
  return true;
}

// /v2/models/MODEL/infer or /v2/models/MODEL/versions/VERSION/infer, without escapes.
bool read_path(std::string_view path, Message& message) {
  path = path.substr(0, path.find('?'));
  if (path.find('%') != path.npos || !take_prefix(path, "/v2/models/")) return false;
  message.model = path.substr(0, path.find('/'));
  path.remove_prefix(message.model.size());
  if (take_prefix(path, "/versions/")) {
    message.version = path.substr(0, path.find('/'));
    path.remove_prefix(message.version.size());
    if (message.version.empty()) return false;
  }
  return !message.model.empty() && path == "/infer";
}

bool read_length(std::string_view digits, std::int64_t& length) {
  if (length >= 0 || digits.empty() || digits.size() > kMostDigits) return false;
  length = 0;
  for (const char digit : digits) {
    if (digit < '0' || digit > '9') return false;
    length = 10 * length + (digit - '0');
  }
  return true;
}

// Chooses the encoding of an answer, like `chosen_encoding` of compression.py. False for a header
// with weights, which Python reads.
bool read_accepted(std::string_view accepted, std::int32_t& encoding) {
  if (accepted.find(';') != accepted.npos) return false;
  while (!accepted.empty()) {
    const std::size_t size = std::min(accepted.find(','), accepted.size());
    std::string name = transport::lower(accepted.substr(0, size));
    name.erase(std::remove_if(name.begin(), name.end(),
                              [](char letter) { return letter == ' ' || letter == '\t'; }),
               name.end());
    accepted.remove_prefix(std::min(size + 1, accepted.size()));
    if (name == "gzip") encoding = transport::kGzip;
    if (name == "deflate" && encoding != transport::kGzip) encoding = transport::kDeflate;
  }
  return true;
}

bool read_head(std::string_view pairs, Message& message) {
  bool is_usual = true;
  std::string_view path;
  std::int64_t length = -1;
  transport::each_pair(pairs, [&](std::string_view name, std::string_view value) {
    if (name == ":path")
      path = value;
    else if (name == "inference-header-content-length")
      is_usual = is_usual && read_length(value, length);
    else if (name == "accept-encoding")
      is_usual = is_usual && read_accepted(value, message.encoding);
    else if (name == "content-encoding")
      is_usual = false;
  });
  message.json_bytes = std::max(std::int64_t(0), length);
  return is_usual && length != 0 &&
         message.json_bytes <= std::min(message.bytes.size, kMostJsonBytes) &&
         read_path(path, message);
}

std::string_view text_of(Bytes bytes, const Text& text) {
  return {reinterpret_cast<const char*>(bytes.data) + text.start, std::size_t(text.size)};
}

}  // namespace

bool read_message(Form form, const transport::Event& event, Message& message,
                  JsonTensors& tensors) {
  message.form = form;
  message.bytes = {event.data, event.bytes};
  clear(message.header);
  Header& header = message.header.header;
  if (form == kJson) {
    if (event.headers == nullptr ||
        !read_head({event.headers, std::size_t(event.header_bytes)}, message))
      return false;
    if (message.json_bytes != 0)
      return read_json_header({event.data, message.json_bytes}, message.header);
    return message.bytes.size <= kMostJsonBytes && tensors.read(message.bytes, message.header);
  }
  if (!(form == kPredict ? read_predict_header(message.bytes, header)
                         : read_header(message.bytes, header)))
    return false;
  message.model = text_of(message.bytes, header.name);
  message.version = text_of(message.bytes, header.version);
  return true;
}

bool read_inputs(const Message& message, const JsonTensors& tensors, Request& decoding,
                 Call& call) {
  const std::vector<NamedTensor>& named = tensors.tensors();
  bool is_read =
      message.form == kJson && message.json_bytes == 0
          ? decoding.scan_tensors(named.data(), std::int64_t(named.size()), tensors.spans().data())
      : message.form == kJson    ? decoding.scan_body(message.bytes, message.json_bytes)
      : message.form == kPredict ? decoding.scan_predict(message.bytes)
                                 : decoding.scan(message.bytes);
  if (is_read) {
    call.reserve(decoding.layout.words);
    is_read = decoding.fill(call.words.get());
  }
  decoding.trim();
  if (!is_read) return false;
  const Model& model = *decoding.model;
  call.layout = decoding.layout;
  call.own.assign(decoding.own, decoding.own + model.features);
  call.dense_at.assign(decoding.dense_at, decoding.dense_at + model.dense);
  call.dense_rows.assign(decoding.dense_rows, decoding.dense_rows + model.dense);
  return true;
}

}  // namespace sharded_infer::call
