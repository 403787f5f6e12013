// One client's connection.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "call.h"
#include "openssl.h"
#include "session.h"

namespace sharded_infer::transport {

class Server;

// What a client has of what there is for all.
struct Usage {
  std::int64_t calls = 0;
  std::int64_t handed_calls = 0;  // of them, those that handlers have
  std::int64_t held_bytes = 0;    // of requests
  std::int64_t answer_bytes = 0;  // that are not written yet
};

// All connections of an address.
struct Address : Usage {
  std::int64_t connections = 0;  // without those for probes
  std::int64_t probes = 0;
};

struct Connection : Usage {
  // Counts for the connection and for its address.
  void count(std::int64_t Usage::* what, std::int64_t change) {
    this->*what += change;
    of_address->*what += change;
  }
  // Whether it may have `more` where `left` is left for all: a connection may have as much as is
  // left, and an address three times as much. So many of either leave something for others.
  bool fits(std::int64_t Usage::* what, std::int64_t more, std::int64_t left) const {
    const std::int64_t own = this->*what + more;
    return own <= left && own <= 3 * left - of_address->*what - more;
  }

  Server* server = nullptr;
  Address* of_address = nullptr;
  int descriptor = -1;
  std::unique_ptr<Session> session;  // null until TLS stands
  openssl::Ssl* ssl = nullptr;
  std::string address;  // as far as clients are told apart
  std::string peer;     // as gRPC writes it: ipv4:127.0.0.1:50000

  bool shaking_hands = false;  // of TLS
  bool greeted = false;        // the client's first frame has come
  bool waits_to_read = true, waits_to_write = false;
  bool touched = false;
  bool dead = false;
  bool is_http1 = false;
  bool only_probes = false;  // it is beyond the limits
  bool ending = false;       // closed once its calls are answered and all is sent
  bool lingers = false;      // then what its client still sends is read for a while
  bool expelled = false;     // closed as soon as it has been told why

  Call* first_call = nullptr;
  Call* last_call = nullptr;
  std::string out;
  std::size_t written = 0;  // of `out`

  double began = 0.0;
  double active = 0.0;      // when anything last came
  double idle_since = 0.0;  // when it began to wait for its client
  double moved = 0.0;       // when the client last took an answer, or none was there to take
  double age = 0.0;         // at which it is asked to leave

  Connection *before = nullptr, *after = nullptr;            // of its group
  Connection *idle_before = nullptr, *idle_after = nullptr;  // of those that wait for their clients
  bool is_idle = false;
  int group = 0;
};

}  // namespace sharded_infer::transport
