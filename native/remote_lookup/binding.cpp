// The C interface of lookups that are answered here, which Python calls through ctypes.
#include <algorithm>
#include <cmath>

#include "base/clock.h"
#include "transport/request_head.h"
#include "transport/server.h"
#include "answer_lookups.h"

using namespace sharded_infer::lookups;
using sharded_infer::Bytes;
using sharded_infer::monotonic;
using sharded_infer::transport::Answer;
using sharded_infer::transport::Event;
using sharded_infer::transport::Server;

extern "C" {

Shares* sharded_infer_shares_create(const double* boundaries, std::int64_t count) {
  return new Shares(boundaries, count);
}

const Share* sharded_infer_shares_add(Shares* shares, const ShareSettings* settings) {
  return shares->add(*settings);
}

void sharded_infer_shares_drop(Shares* shares, const Share* share) { shares->drop(share); }

void sharded_infer_shares_counted(const Shares* shares, std::int64_t* to) {
  shares->counts.read(to);
}

std::int32_t sharded_infer_shares_fetch(Shares* shares, Server* server, std::int32_t method,
                                        Event* event, std::int32_t held,
                                        std::int32_t milliseconds) {
  const double end = monotonic() + 1e-3 * milliseconds;
  for (;;) {
    const double left = 1e3 * (end - monotonic());
    if (left <= 0.0) {
      server->give_back(event, held);
      return 0;
    }
    const int count = server->fetch(event, held, 1, int(std::ceil(left)));
    if (count <= 0) return count;
    held = 1;
    using namespace sharded_infer::transport;
    if (event->kind == kCancelled) continue;
    if (event->kind != kCall || event->method != method || event->encoding != kIdentity ||
        event->seconds_left <= 0.0)
      return 1;
    // Headers are handed over where lookups are traced.
    if (event->headers != nullptr &&
        has_header({event->headers, std::size_t(event->header_bytes)}, "traceparent"))
      return 1;
    Answer* answer = answer_lookup(*shares, Bytes{event->data, event->bytes});
    if (answer == nullptr) return 1;
    server->respond(event->call, answer, true);
  }
}
}
