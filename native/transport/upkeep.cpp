// What time decides about connections: each is looked after once a second, a tenth of them at a
// time.
#include <sys/epoll.h>
#include <unistd.h>

#include "callbacks.h"
#include "server.h"

namespace sharded_infer::transport {

namespace {

constexpr double kUpkeepSeconds = 0.1, kDrainingUpkeepSeconds = 0.02;
// How often answers are counted, and how many calls must be in progress then.
constexpr double kRateSeconds = 1.0;
constexpr std::int64_t kBusyCalls = 32;
constexpr double kLeastRate = 10.0;
// A client that waits for this share of its deadline, or this long, does not reset rapidly.
constexpr double kWaitedShare = 0.5, kWaitedSeconds = 1.0;
// More calls than this are not given up between two fetches without a purpose.
constexpr std::int64_t kMostUntold = 4096;
// Between the notice of the end and the last GOAWAY: a round trip of any client.
constexpr double kNoticeSeconds = 0.3;
constexpr int kPingStrikes = 2;
// How often an address that was told to calm down may connect: a second, and at once.
constexpr double kCalmedRate = 5.0, kCalmedBurst = 20.0;
constexpr std::size_t kMostCalmed = 4096;
// What a client must send at least, once the time for a small message is over.
constexpr double kSlowestBytesPerSecond = 64 << 10;

}  // namespace

void Server::upkeep() {
  while (!read_on_.empty()) {
    const std::vector<std::uint64_t> calls = std::move(read_on_);
    read_on_.clear();
    for (const std::uint64_t id : calls)
      if (Call* call = find_call(id); call != nullptr && !call->connection->dead) read_on(call);
  }
  if (draining_ && !listeners_.empty()) {
    close_listeners();
    draining_since_ = now_;
  }
  if (now_ < next_upkeep_) return;
  next_upkeep_ = now_ + (draining_ ? kDrainingUpkeepSeconds : kUpkeepSeconds);
  read_lingering();
  measure_answers();
  if (draining_) {
    for (Connection* group : groups_)
      for (Connection* one = group; one != nullptr; one = one->after) look_after(one);
    return;
  }
  for (Connection* one = groups_[next_group_]; one != nullptr; one = one->after) look_after(one);
  next_group_ = (next_group_ + 1) % kGroups;
  if (next_group_ == 0)
    for (auto at = calmed_.begin(); at != calmed_.end();)
      at = at->second.is_full(now_) ? calmed_.erase(at) : std::next(at);
}

// How many calls are answered in a second, where there is always another that waits.
void Server::measure_answers() {
  if (now_ < next_rate_) return;
  const double seconds = now_ - next_rate_ + kRateSeconds;
  const bool busy = handed_calls_ >= kBusyCalls;
  if (busy && was_busy_)
    answers_a_second_ = std::max(kLeastRate, double(answered_ - answered_before_) / seconds);
  was_busy_ = busy;
  answered_before_ = answered_;
  next_rate_ = now_ + kRateSeconds;
}

void Server::look_after(Connection* connection) {
  if (connection->dead) return;
  if (!connection->greeted) {
    // It has no call: while draining, a preface on its way is all that is waited for.
    if (draining_ && now_ > draining_since_ + kNoticeSeconds) return close_soon(connection);
    if (now_ > connection->began + settings_.handshake_seconds) {
      ++counters_.too_late;
      return close_soon(connection);
    }
  }
  if (connection->session == nullptr) return;
  for (Call* call = connection->first_call; call != nullptr; call = call->after) {
    const Method* method =
        call->head.method < 0 ? nullptr : &methods_[std::size_t(call->head.method)];
    if (call->half_closed || call->refused || call->finished) continue;
    // A stream may be silent between its messages, but not within one.
    if (call->has_head && method != nullptr && method->kind == kStream) {
      if (call->prefix_bytes == 0) call->message_deadline = now_ + settings_.message_seconds;
    }
    if (now_ < call->message_deadline + call->got / kSlowestBytesPerSecond) continue;
    ++counters_.too_late;
    if (call->has_head) {
      refuse(call, {4, "the message did not come in time"});
    } else {
      // Its block of headers has no end: the connection carries nothing else until it has.
      return close_soon(connection);
    }
  }
  if (connection->calls == 0 && now_ > connection->idle_since + settings_.idle_seconds &&
      !connection->said_shutdown)
    connection->age = 0.0;
  const bool unsent = connection->written < connection->out.size() || connection->answer_bytes > 0;
  if (unsent && now_ > connection->moved + settings_.stalled_seconds) {
    ++counters_.not_reading;
    return close_soon(connection);
  }
  keep_alive(connection);
  if (!connection->expelled) say_goodbye(connection);
}

void Server::keep_alive(Connection* connection) {
  if (connection->pinged && connection->active > connection->ping_at) connection->pinged = false;
  if (connection->pinged) {
    if (now_ < connection->ping_at + settings_.keepalive_timeout_seconds) return;
    ++counters_.keepalive_lost;
    expel(connection, nghttp2::kNoError, "keepalive_timeout");
  } else if (now_ > connection->active + settings_.keepalive_seconds) {
    connection->pinged = true;
    connection->ping_at = now_;
    http2_.submit_ping(connection->session, 0, nullptr);
    touch(connection);
  }
}

// A connection ends without losing a call: a notice, a GOAWAY with the last call that was seen,
// and the end when all are answered.
void Server::say_goodbye(Connection* connection) {
  const bool leaves = draining_ || now_ > connection->began + connection->age;
  if (leaves && !connection->said_shutdown) {
    connection->said_shutdown = true;
    connection->goaway_at = now_ + kNoticeSeconds;
    http2_.submit_notice(connection->session);
    touch(connection);
  } else if (connection->said_shutdown && !connection->said_goaway &&
             now_ >= connection->goaway_at) {
    connection->said_goaway = true;
    http2_.submit_goaway(connection->session, 0, http2_.last_stream(connection->session),
                         nghttp2::kNoError, nullptr, 0);
    touch(connection);
  } else if (connection->said_goaway) {
    const double until = draining_ ? draining_since_ + drain_seconds_
                                   : connection->goaway_at + settings_.grace_seconds;
    if (now_ > until) close_soon(connection);
  }
}

void Server::client_pinged(Connection* connection) {
  count_empty_frame(connection);
  if (connection->calls > 0) return;
  const bool soon = now_ < connection->last_client_ping + settings_.least_ping_seconds;
  connection->last_client_ping = now_;
  if (!soon) {
    connection->ping_strikes = 0;
  } else if (++connection->ping_strikes > kPingStrikes) {
    calm(connection, &counters_.too_many_pings, "too_many_pings");
  }
}

// Under overload all clients give up, at their deadlines: only those count that hardly waited.
void Server::client_reset(Connection* connection, const Call* call) {
  if (call == nullptr) return count_empty_frame(connection);
  const double waits = std::min(kWaitedSeconds, kWaitedShare * call->head.timeout);
  if (!call->handed || now_ < call->began + waits || untold_ > kMostUntold) count_reset(connection);
}

void Server::count_reset(Connection* connection) {
  if (connection->resets.take(now_) > 0.0)
    calm(connection, &counters_.too_many_resets, "too_many_resets");
}

void Server::count_empty_frame(Connection* connection) {
  if (connection->empty_frames.take(now_) > 0.0)
    calm(connection, &counters_.too_many_frames, "too_many_frames");
}

// Ends a connection whose client costs more than it brings.
void Server::calm(Connection* connection, std::int64_t* counter, const char* words) {
  if (connection->expelled) return;
  ++*counter;
  if (calmed_.size() >= kMostCalmed) calmed_.clear();
  calmed_.try_emplace(connection->address, kCalmedRate, kCalmedBurst);
  expel(connection, nghttp2::kEnhanceYourCalm, words);
}

// Ends a connection as soon as its client has been told why, and which calls were not seen.
void Server::expel(Connection* connection, std::uint32_t error, const char* words) {
  if (connection->session == nullptr) return close_soon(connection);
  if (!connection->expelled) open_calls_ -= connection->calls;
  connection->said_shutdown = connection->said_goaway = connection->expelled = true;
  http2_.submit_goaway(connection->session, 0, http2_.last_stream(connection->session), error,
                       reinterpret_cast<const std::uint8_t*>(words), std::strlen(words));
  touch(connection);
}

}  // namespace sharded_infer::transport
