// Calls on a connection's HTTP/2 session.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <string_view>

#include "transport/request_head.h"
#include "callbacks.h"
#include "connection.h"

namespace sharded_infer::client {

namespace {

nghttp2::Header pair(std::string_view name, std::string_view value, std::uint8_t flags) {
  return {reinterpret_cast<const std::uint8_t*>(name.data()),
          reinterpret_cast<const std::uint8_t*>(value.data()), name.size(), value.size(), flags};
}

// HPACK sends what all calls share as one byte each from the second call on.
constexpr std::uint8_t kShared = nghttp2::kNoCopyName | nghttp2::kNoCopyValue;
constexpr std::uint8_t kOwn = nghttp2::kNoCopyName | nghttp2::kNoIndex;

}  // namespace

void Connection::begin(Call* call, double now) {
  const Settings& settings = shared_.settings;
  const std::string timeout = transport::grpc_timeout(call->deadline - now);
  headers_.clear();
  headers_.push_back(pair(":method", "POST", kShared));
  headers_.push_back(pair(":scheme", ssl_ == nullptr ? "http" : "https", kShared));
  headers_.push_back(pair(":path", settings.paths[call->path], kShared));
  headers_.push_back(pair(":authority", endpoint_.authority, kShared));
  headers_.push_back(pair("te", "trailers", kShared));
  headers_.push_back(pair("content-type", "application/grpc", kShared));
  headers_.push_back(pair("user-agent", settings.user_agent, kShared));
  if (settings.authorization != nullptr)
    headers_.push_back(pair("authorization", settings.authorization, kShared));
  headers_.push_back(pair("grpc-timeout", timeout, kOwn));
  if (!call->traceparent.empty()) headers_.push_back(pair("traceparent", call->traceparent, kOwn));
  nghttp2::DataProvider body{};
  body.read = Callbacks::read_body;
  call->forget_answer();
  const std::int32_t stream = shared_.http2.submit_request(session_, nullptr, headers_.data(),
                                                           headers_.size(), &body, call);
  if (stream < 0) {
    // The numbers of streams are used up (2^30 calls): another connection has new ones.
    leaves_ = true;
    returned.push_back(call);
    return;
  }
  ++call->sends;
  call->state = Call::State::kSent;
  call->connection = this;
  call->stream = stream;
  calls.push_back(call);
  if (silent_since_ == kNever) silent_since_ = now;
}

void Connection::abandon(Call* call) {
  detach(call);
  if (stage_ == Stage::kOpen) reset(call->stream);
}

void Connection::reset(std::int32_t stream) {
  shared_.http2.submit_rst_stream(session_, 0, stream, nghttp2::kCancel);
}

// Null: nobody waits for the stream any more. A call is never freed, but used for other streams.
Call* Connection::find(std::int32_t stream) {
  auto* call = static_cast<Call*>(shared_.http2.stream_user(session_, stream));
  return call != nullptr && call->connection == this && call->stream == stream ? call : nullptr;
}

void Connection::detach(Call* call) {
  call->connection = nullptr;
  calls.erase(std::find(calls.begin(), calls.end(), call));
}

// The peer has ended a call's stream.
void Connection::answered(Call* call, std::uint32_t error) {
  detach(call);
  unknown_bytes_ = 0;
  if (error == nghttp2::kRefusedStream && call->grpc_status < 0) {
    returned.push_back(call);
    return;
  }
  has_answered_ = has_answered_ || call->grpc_status >= 0;
  std::string why;
  const Code code = call->decide(error, endpoint_.name, &why);
  shared_.calls.end(call, code, std::move(why));
}

void Connection::refuse_answer(Call* call, Code code, const std::string& words) {
  has_answered_ = true;
  abandon(call);
  shared_.calls.end(call, code, std::string(endpoint_.name) + ": " + words);
}

// The next bytes of an answer.
void Connection::take(Call* call, const std::uint8_t* data, std::size_t bytes) {
  while (bytes > 0 && call->prefix_bytes < kPrefixBytes) {
    call->prefix[call->prefix_bytes++] = *data++;
    --bytes;
    if (call->prefix_bytes < kPrefixBytes) continue;
    const std::uint8_t* prefix = call->prefix;
    call->wanted = std::size_t(prefix[1]) << 24 | std::size_t(prefix[2]) << 16 |
                   std::size_t(prefix[3]) << 8 | prefix[4];
    if (prefix[0] != 0)
      return refuse_answer(call, kInternal, "the answer is compressed, which was not asked for");
    if (call->wanted > std::size_t(shared_.settings.max_answer_bytes))
      return refuse_answer(call, kResourceExhausted,
                           "the answer has " + std::to_string(call->wanted) + " bytes, at most " +
                               std::to_string(shared_.settings.max_answer_bytes) + " are allowed");
    call->answer = shared_.calls.buffers.take(call->wanted);
    if (call->answer == nullptr)
      return refuse_answer(call, kResourceExhausted, "no memory is left for the answer");
  }
  if (bytes > call->wanted - call->got)
    return refuse_answer(call, kInternal, "expected one message, got more");
  if (bytes > 0) std::memcpy(call->answer + call->got, data, bytes);
  call->got += bytes;
}

// Calls above the last stream have not been processed, and nothing new may begin.
void Connection::said_goaway(std::int32_t last_stream) {
  leaves_ = true;
  for (std::size_t at = calls.size(); at-- > 0;) {
    Call* call = calls[at];
    if (call->stream <= last_stream) continue;
    detach(call);
    returned.push_back(call);
  }
}

}  // namespace sharded_infer::client
