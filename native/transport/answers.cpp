// What a call's client is sent: messages, a status, or a refusal.
#include <cmath>

#include "callbacks.h"
#include "server.h"

namespace sharded_infer::transport {

namespace {

nghttp2::Header header(const char* name, std::string_view value) {
  return {reinterpret_cast<const std::uint8_t*>(name),
          reinterpret_cast<const std::uint8_t*>(value.data()), std::strlen(name), value.size(),
          nghttp2::kNoCopyName};
}

// The status of an ending, as trailers. `memory` keeps what they point to.
struct StatusHeaders {
  explicit StatusHeaders(const Ending& ending)
      : code(std::to_string(ending.code)), words(percent_encoded(ending.words)) {
    headers.push_back(header("grpc-status", code));
    if (!words.empty()) headers.push_back(header("grpc-message", words));
    each_pair(ending.trailers, [this](std::string_view name, std::string_view value) {
      headers.push_back({reinterpret_cast<const std::uint8_t*>(name.data()),
                         reinterpret_cast<const std::uint8_t*>(value.data()), name.size(),
                         value.size(), 0});
    });
  }
  std::string code, words;
  std::vector<nghttp2::Header> headers;
};

}  // namespace

void Server::refuse(Call* call, Refusal refusal) {
  if (call->refused || call->finished) return;
  call->refused = true;
  const std::int32_t number = call->head.method;
  ++counters_.refused[refusal.code];
  refused_now_ = true;
  if (number >= 0 && methods_[std::size_t(number)].access & (kPredict | kNotHere))
    ++counters_.refused_predict[refusal.code];
  if (call->handed) hand(call, kCancelled);
  Ending ending;
  ending.code = refusal.code;
  ending.words = std::move(refusal.words);
  if (refusal.retry_seconds >= 0.0) {
    RequestHead trailers;
    trailers.keep("grpc-retry-pushback-ms",
                  std::to_string(std::int64_t(std::ceil(refusal.retry_seconds * 1e3))));
    ending.trailers = std::move(trailers.others);
  }
  if (refusal.code == 12 && call->head.encoding == kOther) {
    RequestHead trailers;
    trailers.keep("grpc-accept-encoding", "identity,gzip,deflate");
    ending.trailers = std::move(trailers.others);
  }
  std::free(call->message);
  held_bytes_ -= call->capacity;
  call->connection->count(&Usage::held_bytes, -std::int64_t(call->capacity));
  call->message = nullptr;
  call->capacity = 0;
  end(call, std::move(ending));
}

void Server::refuse_http(Call* call, const char* status) {
  call->refused = call->finished = call->answered = true;
  // RFC 9110, section 15.5.6: a 405 says what is allowed.
  const nghttp2::Header headers[] = {header(":status", status), header("allow", "POST")};
  const std::size_t count = std::strcmp(status, "405") == 0 ? 2 : 1;
  http2_.submit_response(call->connection->session, call->stream, headers, count, nullptr);
  touch(call->connection);
}

void Server::answer(Call* call, Answer* answer) {
  call->add(answer);
  call->connection->count(&Usage::answer_bytes, answer->bytes);
  answer_bytes_ += answer->bytes;
  send_response(call);
}

void Server::end(Call* call, Ending ending) {
  // An answer that its client does not take is nobody's work any more.
  if (call->handed && !call->finished) count_handed(call, -1);
  call->finished = true;
  call->ending = std::move(ending);
  if (call->answered || call->first_answer != nullptr) return send_response(call);
  // Nothing but a status: one frame of headers.
  call->answered = true;
  const StatusHeaders status(call->ending);
  std::vector<nghttp2::Header> headers = {header(":status", "200"),
                                          header("content-type", "application/grpc")};
  headers.insert(headers.end(), status.headers.begin(), status.headers.end());
  http2_.submit_response(call->connection->session, call->stream, headers.data(), headers.size(),
                         nullptr);
  touch(call->connection);
}

void Server::send_response(Call* call) {
  nghttp2::Session* session = call->connection->session;
  if (call->answered) {
    http2_.resume_data(session, call->stream);
  } else {
    call->answered = true;
    const nghttp2::Header headers[] = {header(":status", "200"),
                                       header("content-type", "application/grpc")};
    nghttp2::DataProvider data;
    data.source.pointer = call;
    data.read = Callbacks::read_answer;
    http2_.submit_response(session, call->stream, headers, 2, &data);
  }
  touch(call->connection);
}

void Server::submit_trailers(Call* call, nghttp2::Session* session, std::int32_t stream) {
  if (call->ending.code == 0 && call->ending.trailers.empty()) {
    static const nghttp2::Header good = header("grpc-status", "0");
    http2_.submit_trailer(session, stream, &good, 1);
    return;
  }
  const StatusHeaders status(call->ending);
  http2_.submit_trailer(session, stream, status.headers.data(), status.headers.size());
}

void Server::answer_was_sent(Call* call) {
  if (call->open_messages == 0) return;
  --call->open_messages;
  read_on_.push_back(call->id);
}

}  // namespace sharded_infer::transport
