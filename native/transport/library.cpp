// The C interface of the transport, which Python calls through ctypes.
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>

#include "server.h"

#define EXPORTED __attribute__((visibility("default")))

using sharded_infer::transport::Answer;
using sharded_infer::transport::Counters;
using sharded_infer::transport::Event;
using sharded_infer::transport::Server;
using sharded_infer::transport::Settings;
using sharded_infer::transport::Token;
using sharded_infer::transport::Tokens;

extern "C" {

// Starts the I/O thread; null, and the reason in `error`, where it cannot.
EXPORTED Server* sharded_infer_transport_start(const Settings* settings, char* error,
                                               std::int64_t error_bytes) {
  try {
    return new Server(*settings);
  } catch (const std::exception& failure) {
    std::snprintf(error, std::size_t(error_bytes), "%s", failure.what());
    return nullptr;
  }
}

// The version of libnghttp2 as a number, 0x013400 for 1.52.0; 0 and the reason where it is missing
// or too old.
EXPORTED std::int32_t sharded_infer_transport_http2_version(char* error, std::int64_t error_bytes) {
  try {
    const sharded_infer::nghttp2::Library library;
    const sharded_infer::nghttp2::Info* info = library.version(0);
    // CVE-2023-44487 and CVE-2024-28182: versions before have floods that no callback sees.
    if (library.reset_rate_limit == nullptr || library.max_continuations == nullptr)
      throw std::runtime_error(std::string("libnghttp2 ") + info->text +
                               " has no limit of resets and CONTINUATION frames, as 1.61 has");
    return info->number;
  } catch (const std::exception& failure) {
    std::snprintf(error, std::size_t(error_bytes), "%s", failure.what());
    return 0;
  }
}

// Whether libnghttp2 is part of this library.
EXPORTED std::int32_t sharded_infer_transport_http2_is_linked() {
  return sharded_infer::nghttp2::Library::kIsLinked;
}

// Writes the version of OpenSSL: 1, or 0 and the reason where it is missing.
EXPORTED std::int32_t sharded_infer_transport_tls_version(char* text, std::int64_t text_bytes) {
  try {
    const sharded_infer::openssl::Library library;
    std::snprintf(text, std::size_t(text_bytes), "%s", library.version(0));
    return 1;
  } catch (const std::exception& failure) {
    std::snprintf(text, std::size_t(text_bytes), "%s", failure.what());
    return 0;
  }
}

// Whether OpenSSL is part of this library.
EXPORTED std::int32_t sharded_infer_transport_tls_is_linked() {
  return sharded_infer::openssl::Library::kIsLinked;
}

EXPORTED const Counters* sharded_infer_transport_counters(const Server* server) {
  return &server->counters();
}

// See Server::fetch.
EXPORTED std::int32_t sharded_infer_transport_fetch(Server* server, Event* events,
                                                    std::int32_t held, std::int32_t most,
                                                    std::int32_t milliseconds) {
  return server->fetch(events, held, most, milliseconds);
}

EXPORTED void sharded_infer_transport_respond(Server* server, std::uint64_t call,
                                              const std::uint8_t* message, std::int64_t bytes,
                                              std::int32_t ends) {
  server->respond(call, Answer::make(message, std::uint32_t(bytes)), ends != 0);
}

// Answers a request of HTTP/1.1. `lines` are the status and the headers, each with its line break.
EXPORTED void sharded_infer_transport_respond_http(Server* server, std::uint64_t call,
                                                   const char* lines, std::int64_t lines_bytes,
                                                   const char* body, std::int64_t body_bytes) {
  server->respond(
      call, Answer::make_http({lines, std::size_t(lines_bytes)}, {body, std::size_t(body_bytes)}),
      true);
}

// As `sharded_infer_transport_respond_http`, at the next flush or before. True if this thread must
// flush: it does not hold replies until its `fetch`.
EXPORTED bool sharded_infer_transport_respond_http_later(Server* server, std::uint64_t call,
                                                         const char* lines,
                                                         std::int64_t lines_bytes, const char* body,
                                                         std::int64_t body_bytes) {
  return server->respond_later(
      call, Answer::make_http({lines, std::size_t(lines_bytes)}, {body, std::size_t(body_bytes)}));
}

// See Server::hold_replies.
EXPORTED void sharded_infer_transport_hold(Server* server) { server->hold_replies(); }
EXPORTED void sharded_infer_transport_flush(Server* server) { server->flush(); }

EXPORTED void sharded_infer_transport_finish(Server* server, std::uint64_t call, std::int32_t code,
                                             const char* words, std::int64_t words_bytes,
                                             const char* trailers, std::int64_t trailers_bytes) {
  server->finish(call, code, std::string(words, std::size_t(words_bytes)),
                 std::string(trailers, std::size_t(trailers_bytes)));
}

// Replaces the tokens; a negative count: calls need none. 0, or 1 where OpenSSL is missing.
EXPORTED std::int32_t sharded_infer_transport_set_tokens(Server* server, const Token* tokens,
                                                         std::int32_t count) {
  try {
    server->set_tokens(count < 0 ? nullptr
                                 : std::make_shared<Tokens>(tokens, count, &server->crypto()));
    return 0;
  } catch (const std::exception&) { return 1; }
}

EXPORTED void sharded_infer_transport_set_fixed_answer(Server* server, std::int32_t method,
                                                       const char* message, std::int64_t bytes,
                                                       const char* answer,
                                                       std::int64_t answer_bytes) {
  server->set_fixed_answer(method, std::string(message, std::size_t(bytes)),
                           std::string(answer, std::size_t(answer_bytes)));
}

EXPORTED void sharded_infer_transport_set_backlog(Server* server, double seconds) {
  server->set_backlog(seconds);
}

EXPORTED void sharded_infer_transport_set_urgent_lead(Server* server, double seconds) {
  server->set_urgent_lead(seconds);
}

// See Server::stop_accepting.
EXPORTED void sharded_infer_transport_stop_accepting(Server* server) { server->stop_accepting(); }

EXPORTED void sharded_infer_transport_drain(Server* server, double seconds) {
  server->drain(seconds);
}

// Ends the I/O thread; `fetch` then returns -1 once nothing is left.
EXPORTED void sharded_infer_transport_stop(Server* server) { server->stop(); }

// No thread may use it any more.
EXPORTED void sharded_infer_transport_destroy(Server* server) { delete server; }
}
