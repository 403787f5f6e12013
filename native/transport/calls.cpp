// A call from its headers to what the handlers are told.
#include <algorithm>

#include "server.h"

namespace sharded_infer::transport {

namespace {

constexpr std::size_t kMostSpareCalls = 4096;
// Fewer calls than this are never too many for a deadline, and of a deadline this much may be
// waited.
constexpr std::int64_t kFewCalls = 64;
constexpr double kUsableShare = 0.7;
// Of a deadline, what calls may take whose messages have not come: some never do.
constexpr double kMostToCome = 0.5;
// Deadlines further away than this are left to the scheduler.
constexpr double kLongestJudged = 2.0;
// An I/O thread that shares its core reads what came at most this late.
constexpr double kLongestStall = 0.1;
// Fewer calls in progress than this are not divided among clients.
constexpr std::int64_t kDividedCalls = 1024;
// Of all connections.
constexpr std::int64_t kMostOpenCalls = 64 << 10;
// Of answers that a connection's client has not taken, beyond which it may ask for no more.
constexpr std::int64_t kMostAnswerBytes = 64 << 20;
// And of all connections.
constexpr std::int64_t kMostAnswerBytesOfAll = 512 << 20;
// A stream of calls that had none for so long may end for another.
constexpr double kSilentSeconds = 10.0;

}  // namespace

Call* Server::open_call(Connection* connection, std::int32_t stream) {
  Call* call;
  if (spare_calls_.empty()) {
    call = new Call;
  } else {
    call = spare_calls_.back();
    spare_calls_.pop_back();
  }
  std::uint32_t slot;
  if (free_slots_.empty()) {
    slot = std::uint32_t(slots_.size());
    slots_.push_back(call);
    generations_.push_back(1);
  } else {
    slot = free_slots_.back();
    free_slots_.pop_back();
    slots_[slot] = call;
  }
  call->id = std::uint64_t(generations_[slot]) << 32 | slot;
  call->connection = connection;
  call->stream = stream;
  call->began = std::max(looked_before_, now_ - kLongestStall);
  call->message_deadline = now_ + settings_.message_seconds;
  call->before = connection->last_call;
  (call->before == nullptr ? connection->first_call : call->before->after) = call;
  connection->last_call = call;
  if (connection->calls == 0) set_idle(connection, false);
  connection->count(&Usage::calls, 1);
  ++counters_.calls;
  if (!connection->expelled && !connection->fits(&Usage::calls, 0, kMostOpenCalls - ++open_calls_))
    calm(connection, &counters_.too_many_calls, "too_many_calls");
  return call;
}

Call* Server::find_call(std::uint64_t id) {
  const auto slot = std::uint32_t(id);
  const bool there = slot < slots_.size() && generations_[slot] == std::uint32_t(id >> 32);
  return there ? slots_[slot] : nullptr;
}

void Server::forget(Call* call) {
  Connection* connection = call->connection;
  connection->session->forget(call);
  expect(call, false);
  // The end of a stream is told in any case: nothing of it comes after.
  if (call->handed && !call->cancelled && (!call->finished || is_stream(call)))
    hand(call, kCancelled);
  if (call->handed && !call->finished) count_handed(call, -1);
  leave_streams(call);
  (call->before == nullptr ? connection->first_call : call->before->after) = call->after;
  (call->after == nullptr ? connection->last_call : call->after->before) = call->before;
  held_bytes_ -= call->capacity;
  connection->count(&Usage::held_bytes, -std::int64_t(call->capacity));
  for (const Answer* one = call->first_answer; one != nullptr; one = one->next) {
    connection->count(&Usage::answer_bytes, -std::int64_t(one->bytes - one->sent));
    answer_bytes_ -= one->bytes - one->sent;
  }
  connection->count(&Usage::calls, -1);
  if (connection->calls == 0) {
    set_idle(connection, true);
    if (connection->ending) touch(connection);
  }
  --counters_.calls;
  if (!connection->expelled) --open_calls_;
  const auto slot = std::uint32_t(call->id);
  slots_[slot] = nullptr;
  ++generations_[slot];
  free_slots_.push_back(slot);
  call->clear();
  if (spare_calls_.size() < kMostSpareCalls)
    spare_calls_.push_back(call);
  else
    delete call;
}

bool Server::is_stream(const Call* call) const {
  const std::int32_t method = call->head.method;
  return method >= 0 && methods_[std::size_t(method)].kind != kUnary;
}

bool Server::is_stream_of_calls(const Call* call) const {
  const std::int32_t method = call->head.method;
  return method >= 0 && methods_[std::size_t(method)].kind == kCalls;
}

// Decides on a call whose headers have come, and whose method is known.
void Server::admit_call(Call* call) {
  const RequestHead& head = call->head;
  const Method& method = methods_[std::size_t(head.method)];
  const Connection* connection = call->connection;
  if (connection->answer_bytes > kMostAnswerBytes ||
      !connection->fits(&Usage::answer_bytes, 0, kMostAnswerBytesOfAll - answer_bytes_))
    return refuse(call, {8, "too many answers wait that this client does not take"});
  Refusal refused = admission_.admit(head, method.access, connection->address, now_);
  if (refused.code != 0) return refuse(call, std::move(refused));
  if (!head.timeout_is_good)
    return refuse(call, {3, "grpc-timeout: expected up to 8 digits and a unit, got another"});
  if (head.encoding == kOther)
    return refuse(call, {12, "grpc-encoding: expected identity, gzip or deflate, got another"});
  call->deadline = now_ + head.timeout;
  if (method.access == kPredict && method.kind == kUnary) {
    const std::int64_t left = settings_.max_calls - handed_calls_;
    if (left <= 0 ||
        (settings_.max_calls >= kDividedCalls && !connection->fits(&Usage::handed_calls, 1, left)))
      return refuse(
          call,
          {8, "in progress: " + plural(settings_.max_calls, "request") + "; no more are taken in",
           retry_of(connection)});
    // Under overload most calls would miss their deadlines: their messages are not read.
    if (comes_too_late(head.timeout)) return refuse(call, {4, kTooLate});
    expect(call, true);
  }
  if (method.kind == kCalls && !admit_stream(call)) return;
  if (method.kind != kUnary) {
    call->handed = true;
    count_handed(call, 1);
  }
  if (method.kind == kStream) hand(call, kOpened);
}

bool Server::admit_stream(Call* call) {
  const std::int64_t most = settings_.max_streams;
  if (draining_streams_) {
    refuse(call, {14, kDraining});
  } else if (std::int64_t(streams_.size()) >= most && !end_silent_stream()) {
    refuse(call, {8, plural(most, "stream") + " are open, no more are taken in"});
  } else {
    call->silent_since = now_;
    streams_.push_back(call);
  }
  return !call->refused;
}

void Server::leave_streams(const Call* call) {
  if (is_stream_of_calls(call))
    streams_.erase(std::remove(streams_.begin(), streams_.end(), call), streams_.end());
}

// Ends the stream of calls that had none for longest, where that is long; false: there is none.
bool Server::end_silent_stream() {
  Call* longest = nullptr;
  for (Call* one : streams_)
    if (one->open_messages == 0 &&
        (longest == nullptr || one->silent_since < longest->silent_since))
      longest = one;
  if (longest == nullptr || now_ < longest->silent_since + kSilentSeconds) return false;
  ++counters_.silent_streams;
  end(longest, {8, "the stream had no request for " + std::to_string(int(kSilentSeconds)) +
                       " s, and another one needed its place"});
  return true;
}

// Ends a stream of calls that has no call and will have none.
void Server::end_answered_stream(Call* call) {
  if (!is_stream_of_calls(call) || call->open_messages != 0 || call->refused || call->finished)
    return;
  if (call->half_closed && call->unread.empty()) return end(call, Ending());
  if (draining_streams_) end(call, {14, kDraining});
}

// Whether a call that is not read yet would miss its deadline. The scheduler's estimate lacks the
// calls that came since it was asked; those with far longer timeouts are answered later anyway.
bool Server::comes_too_late(double timeout) const {
  const double backlog = backlog_;
  if (timeout < backlog) return true;
  if (handed_calls_ <= kFewCalls) {
    // Those that were handed over since take as much as others, and so may those that are to come.
    const std::int64_t unknown = whole_calls_ - known_calls_;
    const double a_call = backlog / double(std::max<std::int64_t>(1, handed_calls_ - unknown));
    const double to_come = std::min(a_call * double(expected_calls_), kMostToCome * timeout);
    return timeout < backlog + a_call * double(unknown) + to_come;
  }
  if (timeout > kLongestJudged) return false;
  std::int64_t before = 0;
  for (int at = 0; at <= timeout_class(timeout); ++at) before += handed_by_timeout_[at];
  // It may be as urgent as others of late, and go before some of them.
  const double behind = 1.0 - std::min(1.0, urgent_lead_ / std::min(timeout, kPatience));
  return before > kFewCalls && behind * double(before) > kUsableShare * timeout * answers_a_second_;
}

void Server::client_ended(Call* call) {
  call->half_closed = true;
  if (call->refused || call->finished) return;
  if (is_stream(call)) {
    if (!call->unread.empty()) return;
    if (call->prefix_bytes != 0) return refuse(call, {3, "the last message is cut off"});
    if (is_stream_of_calls(call))
      end_answered_stream(call);
    else
      hand(call, kHalfClosed);
    return;
  }
  if (call->prefix_bytes == 0) return refuse(call, {3, "the call holds no message"});
  if (call->prefix_bytes < 5 || call->got < call->wanted)
    return refuse(call, {3, "the message is cut off: expected " + plural(call->wanted, "byte") +
                                ", got " + std::to_string(call->got)});
  const std::int32_t number = call->head.method;
  if (number < 64 && fixed_methods_ & std::uint64_t(1) << number && call->got < 1024) {
    std::lock_guard<std::mutex> lock(fixed_lock_);
    const std::string message(reinterpret_cast<const char*>(call->message), call->got);
    const auto found = fixed_.find({number, message});
    if (found != fixed_.end()) {
      answer(call, Answer::make(reinterpret_cast<const std::uint8_t*>(found->second.data()),
                                std::uint32_t(found->second.size())));
      return end(call, Ending());
    }
  }
  hand_whole(call);
}

// Hands over a unary call with its message.
void Server::hand_whole(Call* call) {
  expect(call, false);
  ++whole_calls_;
  call->handed = true;
  count_handed(call, 1);
  hand(call, kCall);
}

void Server::expect(Call* call, bool expected) {
  expected_calls_ += int(expected) - int(call->expected);
  call->expected = expected;
}

void Server::count_handed(Call* call, int change) {
  handed_calls_ += change;
  handed_by_timeout_[timeout_class(call->head.timeout)] += change;
  call->connection->count(&Usage::handed_calls, change);
}

// Tells the handlers. A message's memory is theirs from here on.
void Server::hand(Call* call, EventKind kind) {
  Event event{};
  event.call = call->id;
  event.kind = kind;
  event.place = call->events++;
  call->cancelled = kind == kCancelled;
  untold_ += kind == kCancelled;
  event.method = call->head.method;
  event.seconds_left = call->deadline;
  if (kind == kCall || kind == kMessage) {
    event.data = call->message;
    event.bytes = call->got;
    event.encoding = call->prefix[0] == 0 ? kIdentity : call->head.encoding;
    // `fetch` gives back what the message took of the limit for all.
    held_bytes_ -= std::int64_t(call->capacity) - call->got;
    call->connection->count(&Usage::held_bytes, -std::int64_t(call->capacity));
    call->message = nullptr;
    call->capacity = 0;
  }
  if (kind != kHalfClosed && kind != kCancelled &&
      methods_[std::size_t(call->head.method)].with_headers != 0) {
    if (event.place == 0) call->head.keep(":peer", call->connection->peer);
    const std::string& others = call->head.others;
    auto* copy = static_cast<char*>(std::malloc(others.size()));
    if (copy != nullptr) {
      std::memcpy(copy, others.data(), others.size());
      event.headers = copy;
      event.header_bytes = std::int64_t(others.size());
    }
  }
  fresh_.push_back(event);
}

}  // namespace sharded_infer::transport
