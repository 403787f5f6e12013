// One unary call: what is sent, and what is answered.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "status.h"

namespace sharded_infer::client {

class Connection;

constexpr std::size_t kPrefixBytes = 5;  // of a message: whether compressed, and its length

struct Call {
  enum class State { kWaiting, kSent, kEnded };

  std::int32_t number = 0;  // in its round
  std::int32_t endpoint = 0;
  std::int32_t path = 0;
  bool may_repeat = false;
  double timeout = 0.0;
  double deadline = 0.0;
  const std::uint8_t* message = nullptr;
  std::size_t bytes = 0;
  std::string traceparent;

  State state = State::kWaiting;
  Connection* connection = nullptr;
  std::int32_t stream = 0;
  int sends = 0;
  std::size_t sent = 0;  // with the prefix

  int http_status = 0;
  int grpc_status = -1;
  std::string grpc_message;  // percent-encoded
  std::size_t header_bytes = 0;
  std::uint8_t prefix[kPrefixBytes] = {};
  std::size_t prefix_bytes = 0;
  std::size_t wanted = 0, got = 0;
  std::uint8_t* answer = nullptr;  // of `Buffers`

  Code code = kOk;
  std::string words;

  bool is_sent_whole() const { return sent == kPrefixBytes + bytes; }
  bool is_answered_whole() const { return prefix_bytes == kPrefixBytes && got == wanted; }

  // Nothing has been sent or has come.
  void forget_answer() {
    connection = nullptr;
    sent = 0;
    http_status = 0;
    grpc_status = -1;
    grpc_message.clear();
    header_bytes = prefix_bytes = wanted = got = 0;
  }

  // The next bytes of the request's body.
  std::size_t read_body(std::uint8_t* to, std::size_t room) {
    std::uint8_t* at = to;
    while (sent < kPrefixBytes && room > 0) {
      *at++ = sent == 0 ? 0 : std::uint8_t(bytes >> (8 * (kPrefixBytes - 1 - sent)));
      ++sent;
      --room;
    }
    const std::size_t part = std::min(room, kPrefixBytes + bytes - sent);
    if (part > 0) std::memcpy(at, message + (sent - kPrefixBytes), part);
    sent += part;
    return std::size_t(at - to) + part;
  }

  void add_header(std::string_view name, std::string_view value) {
    if (name == ":status") {
      http_status = header_number(value);
    } else if (name == "grpc-status") {
      grpc_status = header_number(value);
    } else if (name == "grpc-message") {
      grpc_message.assign(value);
    }
  }

  // The status that the server's words mean, its stream having ended with an error of HTTP/2.
  Code decide(std::uint32_t error, const std::string& name, std::string* why) const {
    if (grpc_status == kOk) {
      if (is_answered_whole()) return kOk;
      *why = name + ": OK without a whole message";
      return kInternal;
    }
    if (grpc_status > 0) {
      *why = percent_decoded(grpc_message);
      return grpc_status < kCodes ? Code(grpc_status) : kUnknown;
    }
    if (http_status != 0 && http_status != 200) {
      *why = name + ": HTTP status " + std::to_string(http_status);
      return code_of_http(http_status);
    }
    if (error == nghttp2::kNoError) {
      *why = name + ": the answer has no grpc-status";
      return kUnknown;
    }
    *why = name + ": the stream was reset, HTTP/2 error " + std::to_string(error);
    return code_of_reset(error);
  }
};

}  // namespace sharded_infer::client
