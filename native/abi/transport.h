// A compiled server of gRPC and HTTP/1.1; see transport/server.h.
#pragma once
#include <cstdint>

#include "abi/exported.h"

namespace sharded_infer::transport {

class Server;

// kCalls: a stream whose messages are calls, each answered by one message.
enum MethodKind : std::int32_t { kUnary = 0, kStream = 1, kCalls = 2 };
// A token's scopes: `Access` of serving/security/access.py.
enum AccessBit : std::int32_t {
  kOpen = 0,
  kAnyToken = 1,
  kPredict = 2,
  kAdmin = 4,
  kMetrics = 8,
  kElsewhere = 16,  // the admin address answers it
  kNotHere = 32,    // this is the admin address
};

struct Method {
  const char* path;
  std::int32_t kind;
  std::int32_t access;        // of AccessBit
  std::int32_t with_headers;  // its events have the client's headers
};

// A path of HTTP/1.1; the first that fits a request is its own.
struct Route {
  const char* verb;       // GET is HEAD too; *: any
  const char* path;       // {}: any segment; ** in the end: whatever follows
  std::int32_t access;    // of AccessBit
  std::int32_t is_probe;  // answered also on connections beyond the limits
  std::int64_t max_body;  // 0: a body is not read
};

struct Token {
  std::uint8_t digest[32];  // SHA-256
  std::int32_t scopes;      // of AccessBit
  const char* name;
};

struct Settings {
  const std::int32_t* listeners;  // sockets that listen and do not block, the server's from now on
  std::int32_t listener_count;
  const Method* methods;
  std::int32_t method_count;
  const std::int32_t* http_listeners;  // the same, of HTTP/1.1
  std::int32_t http_listener_count;
  const Route* routes;  // they are methods after those
  std::int32_t route_count;
  std::int32_t http_answers_once;  // a connection is closed after its first answer
  const Token* tokens;
  std::int32_t token_count;  // -1: calls need none
  const void* rates_of;      // the server whose rates it shares, or null
  const char* certificate;   // null: no TLS
  const char* key;
  const char* client_ca;  // null: clients need no certificate
  std::int64_t max_message_bytes;
  std::int64_t max_held_bytes;  // of all requests that are being read or answered
  std::int64_t max_connections;
  std::int64_t max_address_connections;
  std::int64_t max_connection_calls;
  std::int64_t max_calls;  // that are handed over and not answered
  std::int64_t max_header_bytes;
  std::int64_t max_stream_messages;  // of a stream, handed over and not answered
  std::int64_t max_streams;          // of calls
  double handshake_seconds;          // for TLS and the first frame, or a request's head
  double message_seconds;            // for a message, of HTTP/2 longer for large ones
  double idle_seconds;               // of a connection without calls
  double stalled_seconds;            // in which a client takes nothing of what it is sent
  double keepalive_seconds;
  double keepalive_timeout_seconds;
  double least_ping_seconds;
  double age_seconds;
  double grace_seconds;
  double rate;  // calls a second of a client; 0: no limit
  double burst;
  double busy_poll_seconds;  // for which what comes is looked for before a thread sleeps
};

enum EventKind : std::int32_t {
  kCall = 0,        // a unary call with its message
  kOpened = 1,      // a stream, unless it is one of calls
  kMessage = 2,     // of a stream
  kHalfClosed = 3,  // the client sends no more on a stream, unless it is one of calls
  kCancelled = 4,   // nobody waits for the answer any more; of a stream its last event, always
};

enum Encoding : std::int32_t { kIdentity = 0, kGzip = 1, kDeflate = 2, kOther = 3 };

struct Event {
  std::uint64_t call;
  std::uint8_t* data;  // the message
  std::int64_t bytes;
  char* headers;  // pairs of 4-byte lengths and the bytes; see request_head.h
  std::int64_t header_bytes;
  double seconds_left;  // to the client's deadline when it is fetched; infinity: none
  std::int32_t kind;
  std::int32_t method;
  std::int32_t encoding;  // of the message
  std::int32_t place;     // of the event among those of its call
};

// Counted by the I/O thread alone; others may read a value that is being changed.
struct Counters {
  std::int64_t connections;  // that are open
  std::int64_t accepted;
  std::int64_t calls;  // that are open
  std::int64_t held_bytes;
  // Connections that were closed, by reason.
  std::int64_t too_many_connections;
  std::int64_t too_many_of_address;
  std::int64_t handshakes_failed;
  std::int64_t too_late;  // nothing came in time
  std::int64_t protocol_errors;
  std::int64_t too_many_resets;
  std::int64_t too_many_frames;
  std::int64_t too_many_pings;
  std::int64_t too_many_calls;
  std::int64_t not_reading;  // the client took nothing of what it was sent
  std::int64_t keepalive_lost;
  std::int64_t bodies_too_late;
  std::int64_t no_descriptors;
  std::int64_t silent_streams;  // of calls; they gave way to others
  // Calls that were refused before Python saw them, by gRPC's status code.
  std::int64_t refused[17];
  std::int64_t refused_predict[17];
};

}  // namespace sharded_infer::transport

extern "C" {

// The version of libnghttp2 as a number, 0x013400 for 1.52.0; 0 and the reason where it is missing
// or too old.
EXPORTED std::int32_t sharded_infer_transport_http2_version(char error[], std::int64_t error_bytes);
// libnghttp2 is part of this library.
EXPORTED bool sharded_infer_transport_http2_is_linked();
// Writes the version of OpenSSL; false, and the reason, where it is missing.
EXPORTED bool sharded_infer_transport_tls_version(char text[], std::int64_t text_bytes);
// OpenSSL is part of this library.
EXPORTED bool sharded_infer_transport_tls_is_linked();

// Starts the I/O thread; null, and the reason in `error`, where it cannot. Texts and arrays of the
// settings must live as long as the server.
EXPORTED sharded_infer::transport::Server* sharded_infer_transport_start(
    const sharded_infer::transport::Settings* settings, char error[], std::int64_t error_bytes);
EXPORTED const sharded_infer::transport::Counters* sharded_infer_transport_counters(
    const sharded_infer::transport::Server* server);
// See Server::fetch.
EXPORTED std::int32_t sharded_infer_transport_fetch(sharded_infer::transport::Server* server,
                                                    sharded_infer::transport::Event events[],
                                                    std::int32_t held, std::int32_t most,
                                                    std::int32_t milliseconds);

// Answers a unary call, or sends a message of a stream, which `ends` or not.
EXPORTED_KEEPING_GIL void sharded_infer_transport_respond(sharded_infer::transport::Server* server,
                                                          std::uint64_t call,
                                                          const std::uint8_t message[],
                                                          std::int64_t bytes, std::int32_t ends);
// Answers a request of HTTP/1.1. `lines` are the status and the headers, each with its line break.
EXPORTED_KEEPING_GIL void sharded_infer_transport_respond_http(
    sharded_infer::transport::Server* server, std::uint64_t call, const char* lines,
    std::int64_t lines_bytes, const std::uint8_t body[], std::int64_t body_bytes);
// As `sharded_infer_transport_respond_http`, at the next flush or before. True if this thread must
// flush: it does not hold replies until its `fetch`.
EXPORTED_KEEPING_GIL bool sharded_infer_transport_respond_http_later(
    sharded_infer::transport::Server* server, std::uint64_t call, const char* lines,
    std::int64_t lines_bytes, const std::uint8_t body[], std::int64_t body_bytes);
EXPORTED_KEEPING_GIL void sharded_infer_transport_finish(
    sharded_infer::transport::Server* server, std::uint64_t call, std::int32_t code,
    const char* words, std::int64_t words_bytes, const char* trailers, std::int64_t trailers_bytes);
// See Server::refuse_message.
EXPORTED_KEEPING_GIL void sharded_infer_transport_refuse_message(
    sharded_infer::transport::Server* server, std::uint64_t call, const std::uint8_t message[],
    std::int64_t bytes, std::int32_t code, const char* words, std::int64_t words_bytes);
// See Server::hold_replies.
EXPORTED_KEEPING_GIL void sharded_infer_transport_hold(sharded_infer::transport::Server* server);
EXPORTED void sharded_infer_transport_flush(sharded_infer::transport::Server* server);

// Replaces the tokens; a negative count: calls need none. False where OpenSSL is missing.
EXPORTED_KEEPING_GIL bool sharded_infer_transport_set_tokens(
    sharded_infer::transport::Server* server, const sharded_infer::transport::Token tokens[],
    std::int32_t count);
EXPORTED_KEEPING_GIL void sharded_infer_transport_set_fixed_answer(
    sharded_infer::transport::Server* server, std::int32_t method, const char* message,
    std::int64_t bytes, const char* answer, std::int64_t answer_bytes);
EXPORTED_KEEPING_GIL void sharded_infer_transport_set_backlog(
    sharded_infer::transport::Server* server, double seconds);
EXPORTED_KEEPING_GIL void sharded_infer_transport_set_urgent_lead(
    sharded_infer::transport::Server* server, double seconds);
// See Server::drain_streams.
EXPORTED_KEEPING_GIL void sharded_infer_transport_drain_streams(
    sharded_infer::transport::Server* server);
// See Server::stop_accepting.
EXPORTED void sharded_infer_transport_stop_accepting(sharded_infer::transport::Server* server);
EXPORTED_KEEPING_GIL void sharded_infer_transport_drain(sharded_infer::transport::Server* server,
                                                        double seconds);
// Ends the I/O thread; `fetch` then returns -1 once nothing is left.
EXPORTED void sharded_infer_transport_stop(sharded_infer::transport::Server* server);
// No thread may use it any more.
EXPORTED void sharded_infer_transport_destroy(sharded_infer::transport::Server* server);
}
