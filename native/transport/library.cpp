// See abi/transport.h.
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>

#include "server.h"

using sharded_infer::transport::Answer;
using sharded_infer::transport::Counters;
using sharded_infer::transport::Event;
using sharded_infer::transport::Server;
using sharded_infer::transport::Settings;
using sharded_infer::transport::Token;
using sharded_infer::transport::Tokens;

extern "C" {

Server* sharded_infer_transport_start(const Settings* settings, char* error,
                                      std::int64_t error_bytes) {
  try {
    return new Server(*settings);
  } catch (const std::exception& failure) {
    std::snprintf(error, std::size_t(error_bytes), "%s", failure.what());
    return nullptr;
  }
}

std::int32_t sharded_infer_transport_http2_version(char* error, std::int64_t error_bytes) {
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

bool sharded_infer_transport_http2_is_linked() {
  return sharded_infer::nghttp2::Library::kIsLinked;
}

bool sharded_infer_transport_tls_version(char* text, std::int64_t text_bytes) {
  try {
    const sharded_infer::openssl::Library library;
    std::snprintf(text, std::size_t(text_bytes), "%s", library.version(0));
    return true;
  } catch (const std::exception& failure) {
    std::snprintf(text, std::size_t(text_bytes), "%s", failure.what());
    return false;
  }
}

bool sharded_infer_transport_tls_is_linked() { return sharded_infer::openssl::Library::kIsLinked; }

const Counters* sharded_infer_transport_counters(const Server* server) {
  return &server->counters();
}

std::int32_t sharded_infer_transport_fetch(Server* server, Event* events, std::int32_t held,
                                           std::int32_t most, std::int32_t milliseconds) {
  return server->fetch(events, held, most, milliseconds);
}

void sharded_infer_transport_respond(Server* server, std::uint64_t call,
                                     const std::uint8_t* message, std::int64_t bytes,
                                     std::int32_t ends) {
  server->respond(call, Answer::make(message, std::uint32_t(bytes)), ends != 0);
}

void sharded_infer_transport_respond_http(Server* server, std::uint64_t call, const char* lines,
                                          std::int64_t lines_bytes, const std::uint8_t* body,
                                          std::int64_t body_bytes) {
  server->respond(call,
                  Answer::make_http({lines, std::size_t(lines_bytes)},
                                    {reinterpret_cast<const char*>(body), std::size_t(body_bytes)}),
                  true);
}

bool sharded_infer_transport_respond_http_later(Server* server, std::uint64_t call,
                                                const char* lines, std::int64_t lines_bytes,
                                                const std::uint8_t* body, std::int64_t body_bytes) {
  return server->respond_later(
      call, Answer::make_http({lines, std::size_t(lines_bytes)},
                              {reinterpret_cast<const char*>(body), std::size_t(body_bytes)}));
}

void sharded_infer_transport_refuse_message(Server* server, std::uint64_t call,
                                            const std::uint8_t* message, std::int64_t bytes,
                                            std::int32_t code, const char* words,
                                            std::int64_t words_bytes) {
  server->refuse_message(call, Answer::make(message, std::uint32_t(bytes)), code,
                         std::string(words, std::size_t(words_bytes)));
}

void sharded_infer_transport_hold(Server* server) { server->hold_replies(); }
void sharded_infer_transport_flush(Server* server) { server->flush(); }

void sharded_infer_transport_finish(Server* server, std::uint64_t call, std::int32_t code,
                                    const char* words, std::int64_t words_bytes,
                                    const char* trailers, std::int64_t trailers_bytes) {
  server->finish(call, code, std::string(words, std::size_t(words_bytes)),
                 std::string(trailers, std::size_t(trailers_bytes)));
}

bool sharded_infer_transport_set_tokens(Server* server, const Token* tokens, std::int32_t count) {
  try {
    server->set_tokens(count < 0 ? nullptr
                                 : std::make_shared<Tokens>(tokens, count, &server->crypto()));
    return true;
  } catch (const std::exception&) { return false; }
}

void sharded_infer_transport_set_fixed_answer(Server* server, std::int32_t method,
                                              const char* message, std::int64_t bytes,
                                              const char* answer, std::int64_t answer_bytes) {
  server->set_fixed_answer(method, std::string(message, std::size_t(bytes)),
                           std::string(answer, std::size_t(answer_bytes)));
}

void sharded_infer_transport_set_backlog(Server* server, double seconds) {
  server->set_backlog(seconds);
}

void sharded_infer_transport_set_urgent_lead(Server* server, double seconds) {
  server->set_urgent_lead(seconds);
}

void sharded_infer_transport_drain_streams(Server* server) { server->drain_streams(); }

void sharded_infer_transport_stop_accepting(Server* server) { server->stop_accepting(); }

void sharded_infer_transport_drain(Server* server, double seconds) { server->drain(seconds); }

void sharded_infer_transport_stop(Server* server) { server->stop(); }

void sharded_infer_transport_destroy(Server* server) { delete server; }
}
