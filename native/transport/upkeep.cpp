// What time decides about connections: each is looked after once a second, a tenth of them at a
// time.
#include <sys/epoll.h>
#include <unistd.h>

#include "server.h"

namespace sharded_infer::transport {

namespace {

// A preface that was on its way when draining began has come by then.
constexpr double kPrefaceSeconds = 0.3;
constexpr double kUpkeepSeconds = 0.1, kDrainingUpkeepSeconds = 0.02;
// How often answers are counted, and how many calls must be in progress then.
constexpr double kRateSeconds = 1.0;
constexpr std::int64_t kBusyCalls = 32;
constexpr double kLeastRate = 10.0;
// How often an address that was told to calm down may connect: a second, and at once.
constexpr double kCalmedRate = 5.0, kCalmedBurst = 20.0;
constexpr std::size_t kMostCalmed = 4096;
constexpr std::int64_t kMostUnreadBytes = 256 << 20;

}  // namespace

void Server::upkeep() {
  while (!read_on_.empty()) {
    const std::vector<std::uint64_t> calls = std::move(read_on_);
    read_on_.clear();
    for (const std::uint64_t id : calls)
      if (Call* call = find_call(id); call != nullptr && !call->connection->dead) read_on(call);
  }
  if (draining_streams_)
    for (Call* call : std::vector<Call*>(streams_)) end_answered_stream(call);
  if (draining_ && draining_since_ == 0.0) {
    close_listeners();
    draining_since_ = now_;
  }
  if (!accepts_ && !listeners_.empty()) close_listeners();
  is_accepting_ = !listeners_.empty();
  if (now_ < next_upkeep_) return;
  next_upkeep_ = now_ + (draining_ ? kDrainingUpkeepSeconds : kUpkeepSeconds);
  fill_spares();
  read_lingering();
  measure_answers();
  drop_unread_answers();
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

// Of the answers of HTTP/1.1 that are not read, the oldest go; the latest stays, however large.
void Server::drop_unread_answers() {
  if (answer_bytes_ <= kMostUnreadBytes) return;
  std::int64_t total = 0;
  for (Connection* one = idle_last_; one != nullptr; one = one->idle_before) {
    if (!one->is_http1 || one->dead || one->answer_bytes == 0) continue;
    total += one->answer_bytes;
    if (total <= kMostUnreadBytes || total == one->answer_bytes) continue;
    ++counters_.not_reading;
    close_soon(one);
  }
}

void Server::look_after(Connection* connection) {
  if (connection->dead) return;
  if (!connection->greeted) {
    // It has no call: while draining, a preface on its way is all that is waited for.
    if (draining_ && now_ > draining_since_ + kPrefaceSeconds) return close_soon(connection);
    if (now_ > connection->began + settings_.handshake_seconds) {
      ++counters_.too_late;
      return close_soon(connection);
    }
  }
  if (connection->session == nullptr) return;
  const bool unsent = connection->written < connection->out.size() || connection->answer_bytes > 0;
  if (unsent && now_ > connection->moved + settings_.stalled_seconds) {
    ++counters_.not_reading;
    return close_soon(connection);
  }
  connection->session->look_after();
}

// Ends a connection whose client costs more than it brings.
void Server::calm(Connection* connection, std::int64_t* counter, const char* words) {
  if (connection->expelled) return;
  ++*counter;
  if (calmed_.size() >= kMostCalmed) calmed_.clear();
  calmed_.try_emplace(connection->address, kCalmedRate, kCalmedBurst);
  expel(connection, true, words);
}

// Ends a connection as soon as its client has been told why, and which calls were not seen.
void Server::expel(Connection* connection, bool calm, const char* words) {
  if (connection->session == nullptr) return close_soon(connection);
  if (!connection->expelled) open_calls_ -= connection->calls;
  connection->ending = connection->expelled = true;
  connection->session->expel(calm, words);
  touch(connection);
}

}  // namespace sharded_infer::transport
