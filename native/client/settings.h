// What Python says of a client and of its calls, and what it is told: plain structs, which ctypes
// mirrors (serving/transport/client_library.py).
#pragma once
#include <cstdint>

namespace sharded_infer::client {

struct EndpointSettings {
  const char* name;  // in the words of errors
  const char* host;  // a name or an address; null: a Unix socket
  const char* port;  // in digits; of a Unix socket its path
  const char* authority;
  const char* server_name;  // a name or an address that its certificate must have
};

struct Settings {
  const EndpointSettings* endpoints;
  std::int32_t endpoint_count;
  const char* const* paths;
  std::int32_t path_count;
  const char* user_agent;
  const char* authorization;  // the header's value; null: none
  const char* ca;             // null: no TLS
  const char* certificate;    // null: the client shows none
  const char* key;
  std::int64_t max_answer_bytes;
  std::int64_t max_header_bytes;  // of an answer
  double connect_seconds;         // for TCP and TLS, however many addresses there are
  double keepalive_seconds;       // that calls wait on a silent connection before a PING
  double keepalive_timeout_seconds;
  double least_backoff_seconds;  // after the second connection in a row that brought no answer
  double most_backoff_seconds;
};

struct Outgoing {
  const std::uint8_t* message;  // stays until the call has ended
  std::int64_t bytes;
  const char* traceparent;  // null: none
  double timeout;           // seconds
  std::int32_t endpoint;
  std::int32_t path;
  std::int32_t may_repeat;  // it may be processed twice
};

struct Ended {
  std::uint8_t* message;  // the caller's from now on; null: none
  std::int64_t bytes;
  const char* words;  // until the round is cleared
  std::int64_t words_bytes;
  std::int32_t code;  // of gRPC; -1: the call has not ended
};

}  // namespace sharded_infer::client
