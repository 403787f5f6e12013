// The C interface of the client, which Python calls through ctypes.
#include <cstdio>
#include <exception>

#include "client.h"

using sharded_infer::client::Client;
using sharded_infer::client::Ended;
using sharded_infer::client::Outgoing;
using sharded_infer::client::Settings;

extern "C" {

Client* sharded_infer_client_make(const Settings* settings, char* error, std::int64_t error_bytes) {
  try {
    return new Client(*settings);
  } catch (const std::exception& failure) {
    std::snprintf(error, std::size_t(error_bytes), "%s", failure.what());
    return nullptr;
  }
}

void sharded_infer_client_start(Client* client, const Outgoing* calls, std::int32_t count) {
  client->start(calls, count);
}

std::int32_t sharded_infer_client_wait(Client* client, double seconds, std::int32_t all,
                                       std::int32_t* ended, std::int32_t most) {
  return client->wait(seconds, all != 0, ended, most);
}

void sharded_infer_client_cancel(Client* client, std::int32_t number) { client->cancel(number); }

void sharded_infer_client_results(Client* client, std::int32_t first, std::int32_t count,
                                  Ended* results) {
  for (std::int32_t at = 0; at < count; ++at) results[at] = client->result(first + at);
}

void sharded_infer_client_give_back(Client* client, std::uint8_t* message) {
  client->give_back(message);
}

void sharded_infer_client_clear(Client* client) { client->clear(); }

void sharded_infer_client_destroy(Client* client) { delete client; }
}
