// What a server answers to one unary gRPC call, and which status that is.
//
//     HTTP status other than 200                 UNAVAILABLE
//     grpc-status (trailers, or headers alone)   that; OK only with exactly one plain message
//     a reset stream                             as gRPC maps HTTP/2's error codes
//     none of these                              UNKNOWN
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "client/status.h"
#include "transport/nghttp2.h"

namespace sharded_infer::load {

using client::Code;
using client::header_number;
using client::kCancelled;
using client::kCodes;
using client::kDeadlineExceeded;
using client::kInternal;
using client::kOk;
using client::kUnavailable;
using client::kUnknown;
constexpr std::size_t kPrefixBytes = 5;  // of a message: whether compressed, and its length

struct Outcome {
  Code code;
  std::string text;  // percent-encoded; empty when OK
};

class Answer {
 public:
  // Begins anew; its body is only kept where somebody wants it.
  void reset(bool keep_body) {
    http_status_ = 0;
    grpc_status_ = -1;
    received_ = 0;
    keep_body_ = keep_body;
    body_.clear();
    text_.clear();
  }

  void on_header(std::string_view name, std::string_view value) {
    if (name == ":status") {
      http_status_ = header_number(value);
    } else if (name == "grpc-status") {
      grpc_status_ = header_number(value);
    } else if (name == "grpc-message") {
      text_.assign(value);
    }
  }

  void on_data(const std::uint8_t* data, std::size_t bytes) {
    if (received_ < static_cast<std::int64_t>(kPrefixBytes)) {
      const auto begin = static_cast<std::size_t>(received_);
      const std::size_t taken = std::min(bytes, kPrefixBytes - begin);
      std::memcpy(prefix_ + begin, data, taken);
      received_ += static_cast<std::int64_t>(taken);
      data += taken;
      bytes -= taken;
    }
    received_ += static_cast<std::int64_t>(bytes);
    if (keep_body_) body_.append(reinterpret_cast<const char*>(data), bytes);
  }

  bool has_status() const { return grpc_status_ >= 0; }
  bool keeps_body() const { return keep_body_; }
  std::string take_body() { return std::move(body_); }

  // Without its prefix.
  std::int64_t message_bytes() const {
    return std::max<std::int64_t>(received_ - static_cast<std::int64_t>(kPrefixBytes), 0);
  }

  // The call's status, once its stream ended with an error code of HTTP/2.
  Outcome outcome(std::uint32_t http2_error, bool deadline_passed) const {
    if (http_status_ != 0 && http_status_ != 200)
      return {kUnavailable, "HTTP status " + std::to_string(http_status_)};
    if (grpc_status_ == kOk) {
      if (is_one_message()) return {kOk, {}};
      return {kInternal, "OK without exactly one uncompressed message"};
    }
    if (grpc_status_ > 0) {
      return {grpc_status_ < kCodes ? static_cast<Code>(grpc_status_) : kUnknown, text_};
    }
    if (http2_error == nghttp2::kNoError) return {kUnknown, "the answer has no grpc-status"};
    const std::string text =
        "the server reset the stream, HTTP/2 error " + std::to_string(http2_error);
    // A server cancels what has run out of time too.
    const bool is_late = deadline_passed && http2_error == nghttp2::kCancel;
    return {is_late ? kDeadlineExceeded : client::code_of_reset(http2_error), text};
  }

 private:
  bool is_one_message() const {
    if (received_ < static_cast<std::int64_t>(kPrefixBytes) || prefix_[0] != 0) return false;
    std::int64_t length = 0;
    for (std::size_t i = 1; i < kPrefixBytes; ++i) length = length * 256 + prefix_[i];
    return length == message_bytes();
  }

  int http_status_ = 0;
  int grpc_status_ = -1;
  std::int64_t received_ = 0;  // with the prefix
  std::uint8_t prefix_[kPrefixBytes] = {};
  bool keep_body_ = false;
  std::string body_;
  std::string text_;
};

}  // namespace sharded_infer::load
