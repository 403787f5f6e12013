// What Python says of a server, and what it is told of calls: plain structs, which ctypes mirrors
// (serving/transport/library.py).
#pragma once
#include <cstdint>

namespace sharded_infer::transport {

// What a predict call is told that is refused before it is read, or decoded; Python's words too.
constexpr char kTooLate[] = "the deadline cannot be met: more waits than can be answered";

enum MethodKind : std::int32_t { kUnary = 0, kStream = 1 };
// What a token must allow: `Access` of serving/security/access.py.
enum Access : std::int32_t {
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
  std::int32_t access;
  std::int32_t with_headers;  // whether its events have the client's headers
};

// A path of HTTP/1.1; the first that fits a request is its own.
struct Route {
  const char* verb;  // GET is HEAD too; *: any
  const char* path;  // {}: any segment; ** in the end: whatever follows
  std::int32_t access;
  std::int32_t is_probe;  // answered also on connections beyond the limits
  std::int64_t max_body;  // 0: a body is not read
};

struct Token {
  std::uint8_t digest[32];  // SHA-256
  std::int32_t scopes;      // of Access
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
  kOpened = 1,      // a stream
  kMessage = 2,     // of a stream
  kHalfClosed = 3,  // the client sends no more on a stream
  kCancelled = 4,   // nobody waits for the answer any more; of a stream its last event, always
};

enum Encoding : std::int32_t { kIdentity = 0, kGzip = 1, kDeflate = 2, kOther = 3 };

struct Event {
  std::uint64_t call;
  std::uint8_t* data;  // the message
  std::int64_t bytes;
  const char* headers;  // pairs of 4-byte lengths and the bytes; see request_head.h
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
  // Calls that were refused before Python saw them, by gRPC's status code.
  std::int64_t refused[17];
  std::int64_t refused_predict[17];
};

}  // namespace sharded_infer::transport
