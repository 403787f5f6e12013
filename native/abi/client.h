// Unary gRPC calls to several servers at once; see client/client.h.
#pragma once
#include <cstdint>

#include "abi/exported.h"

namespace sharded_infer::client {

class Client;

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
  const void* words;  // until the round is cleared
  std::int64_t words_bytes;
  std::int32_t code;  // of gRPC; -1: the call has not ended
};

}  // namespace sharded_infer::client

extern "C" {

// Null, and the reason in `error`, where it cannot be made. It connects when it is first used.
EXPORTED sharded_infer::client::Client* sharded_infer_client_make(
    const sharded_infer::client::Settings* settings, char error[], std::int64_t error_bytes);
EXPORTED void sharded_infer_client_start(sharded_infer::client::Client* client,
                                         const sharded_infer::client::Outgoing calls[],
                                         std::int32_t count);

// See Client::wait.
EXPORTED std::int32_t sharded_infer_client_wait(sharded_infer::client::Client* client,
                                                double seconds, std::int32_t all,
                                                std::int32_t ended[], std::int32_t most);
EXPORTED void sharded_infer_client_cancel(sharded_infer::client::Client* client,
                                          std::int32_t number);
EXPORTED_KEEPING_GIL void sharded_infer_client_results(sharded_infer::client::Client* client,
                                                       std::int32_t first, std::int32_t count,
                                                       sharded_infer::client::Ended results[]);
EXPORTED_KEEPING_GIL void sharded_infer_client_give_back(sharded_infer::client::Client* client,
                                                         std::uint8_t message[]);
EXPORTED void sharded_infer_client_clear(sharded_infer::client::Client* client);
EXPORTED void sharded_infer_client_destroy(sharded_infer::client::Client* client);
}
