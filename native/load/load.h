// The event loop of one load: one thread, epoll, and a timer.
//
//     connect, and wait until every connection is ready; that is the start
//     until all calls were begun and are over:
//         begin the calls whose time has come      closed loop: whenever one is over
//         end those whose deadline has passed
//         send what waits, each on the connection with the fewest open calls
//         write; sleep until something can be read or the next time comes; read
//
// A call waits while every connection is full (the server's limit of streams) or lost, and the wait
// counts in its latency. Whatever a server is known not to have processed is sent again.
#pragma once
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <deque>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "answer.h"
#include "call.h"
#include "connection.h"
#include "transport/nghttp2.h"
#include "peer.h"
#include "pool.h"
#include "request_head.h"

namespace sharded_infer::load {

// A file descriptor that is closed with its owner.
class Descriptor {
 public:
  Descriptor(int fd, const char* what) : fd_(fd) {
    if (fd < 0) throw std::runtime_error(std::string(what) + ": " + std::strerror(errno));
  }
  ~Descriptor() { close(fd_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  operator int() const { return fd_; }

 private:
  const int fd_;
};

class Load {
 public:
  // What the settings point to must outlive the load. Throws std::runtime_error.
  explicit Load(const Settings& settings)
      : settings_(settings),
        peer_(settings.address, settings.port),
        head_(settings.authority, settings.path, settings.user_agent,
              settings.authorization == nullptr ? "" : settings.authorization),
        epoll_(epoll_create1(EPOLL_CLOEXEC), "epoll"),
        timer_(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC), "timerfd"),
        buffer_(kReadBytes),
        pool_(library_, peer_, epoll_, settings.connect_seconds,
              static_cast<std::size_t>(settings.connections)),
        kept_(static_cast<std::size_t>(settings.message_count)),
        responses_(static_cast<std::size_t>(settings.message_count)) {
    if (settings.call_count > 0) calls_.reserve(static_cast<std::size_t>(settings.call_count));
    epoll_event event{};
    // By edge: it need not be read, since setting it again clears it.
    event.events = EPOLLIN | EPOLLET;
    event.data.ptr = nullptr;
    if (epoll_ctl(epoll_, EPOLL_CTL_ADD, timer_, &event) != 0)
      throw std::runtime_error(std::string("timerfd: ") + std::strerror(errno));
    // Until the start times count from here.
    start_ = clock();
  }

  ~Load() {
    pool_.for_each([](Connection& connection) { connection.end(); });
  }
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;

  // Runs for about so many seconds; true once the load is over. Throws std::runtime_error where
  // there is nobody to connect to.
  bool step(double seconds) {
    double until = now() + seconds;
    while (phase_ != Phase::kDone) {
      double time = now();
      busy_ = false;
      pool_.connect(time);
      if (phase_ == Phase::kConnecting && try_start(time)) {
        time = 0.0;
        until = seconds;
      }
      if (phase_ == Phase::kRunning) begin_due(time);
      expire(time);
      fail_stranded(time);
      send_waiting();
      pool_.for_each([](Connection& connection) { connection.flush(); });
      collect();
      finish(now());
      if (now() >= until) break;
      if (phase_ != Phase::kDone) wait(until);
    }
    return phase_ == Phase::kDone;
  }

  Report report() const {
    return {calls_.data(), static_cast<std::int64_t>(calls_.size()), pool_.links(), seconds_};
  }

  // The first OK message that answered a message; null where there was none.
  const std::string* response(std::int64_t message) const {
    const auto at = static_cast<std::size_t>(message);
    return at < kept_.size() && kept_[at] ? &responses_[at] : nullptr;
  }

  // What came with a code first, percent-encoded.
  const std::string& error(std::size_t code) const { return errors_.at(code); }

 private:
  enum class Phase { kConnecting, kRunning, kDraining, kDone };

  static constexpr std::size_t kReadBytes = 1 << 18;
  static constexpr std::int64_t kBegunAtOnce = 64;  // before answers are read again
  static constexpr int kMostRefusals = 5;
  static constexpr double kStrandedSeconds = 1.0;
  // Nearer than this a sleep would come back too late.
  static constexpr double kShortestSleepSeconds = 50e-6;

  static double clock() {
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  }
  double now() const { return clock() - start_; }
  bool is_open_loop() const { return settings_.schedule != nullptr; }
  std::int64_t begun() const { return static_cast<std::int64_t>(calls_.size()); }

  // Connections ------------------------------------------------------------------------------

  bool try_start(double time) {
    if (pool_.ready() < pool_.size()) {
      if (time > settings_.connect_seconds)
        throw std::runtime_error(reason_.empty() ? "no HTTP/2 settings came" : reason_);
      return false;
    }
    start_ += time;
    armed_ = -kNever;
    pool_.restart(time);
    phase_ = Phase::kRunning;
    return true;
  }

  // Takes what ended on the connections, and replaces those that are draining or lost.
  void collect() {
    pool_.for_each([this](Connection& connection) { collect_ended(connection); });
    const bool at_once =
        pool_.replace(now(), [this](const Connection& connection) { fail_all_on(connection); });
    busy_ = busy_ || at_once;
  }

  void collect_ended(Connection& connection) {
    for (const EndedStream& ended : connection.ended) end_stream(*ended.stream, ended.error);
    connection.ended.clear();
  }

  void fail_all_on(const Connection& connection) {
    reason_ = connection.reason();
    for (Stream& stream : streams_) {
      if (stream.connection != &connection) continue;
      const std::int64_t call = stream.call;
      release(stream);
      if (call >= 0) end_call(call, {kUnavailable, "the connection was lost: " + reason_}, 0);
    }
  }

  // Calls ------------------------------------------------------------------------------------

  void begin_due(double time) {
    for (std::int64_t count = 0;; ++count) {
      const bool over = is_open_loop()
                            ? begun() >= settings_.call_count
                            : time >= settings_.seconds || begun() == settings_.call_count;
      if (over) {
        phase_ = Phase::kDraining;
        drain_until_ = time + settings_.drain_seconds;
        return;
      }
      const double scheduled = is_open_loop() ? settings_.schedule[begun()] : time;
      if (is_open_loop() ? scheduled > time : live_ >= settings_.concurrency) return;
      if (count == kBegunAtOnce) {
        busy_ = true;
        return;
      }
      Call call{};
      call.scheduled = scheduled;
      call.taken = time;
      call.sent = std::numeric_limits<double>::quiet_NaN();
      call.message = static_cast<std::int32_t>(begun() % settings_.message_count);
      call.slot = -1;
      waiting_.push_back(begun());
      calls_.push_back(call);
      ++live_;
    }
  }

  void send_waiting() {
    while (!waiting_.empty()) {
      const std::int64_t index = waiting_.front();
      Call& call = calls_[static_cast<std::size_t>(index)];
      if (!call.done) {
        Connection* connection = pool_.least_loaded();
        if (connection == nullptr) return;
        if (!send(index, call, *connection)) {
          busy_ = true;
          return;
        }
      }
      waiting_.pop_front();
    }
  }

  // False where the connection turns out to take no more.
  bool send(std::int64_t index, Call& call, Connection& connection) {
    Stream& stream = take_stream();
    const auto message = static_cast<std::size_t>(call.message);
    const std::int64_t begin = settings_.offsets[message];
    stream.call = index;
    stream.unsent = settings_.messages + begin;
    stream.unsent_bytes = static_cast<std::size_t>(settings_.offsets[message + 1] - begin);
    stream.answer.reset(settings_.keep_responses && !kept_[message]);
    const double time = now();
    const double left = call.scheduled + settings_.deadline_seconds - time;
    if (!connection.send(stream, head_.headers(left))) {
      release(stream);
      return false;
    }
    call.sent = time;
    call.slot = stream.slot;
    pool_.count_call(connection);
    return true;
  }

  // Deadlines come in the order of the calls, since each is the same time after a call's own.
  void expire(double time) {
    if (!std::isfinite(settings_.deadline_seconds)) return;
    for (; unexpired_ < begun(); ++unexpired_) {
      const Call& call = calls_[static_cast<std::size_t>(unexpired_)];
      if (call.done) continue;
      if (call.scheduled + settings_.deadline_seconds > time) return;
      give_up(unexpired_, {kDeadlineExceeded, "the deadline passed without an answer"});
    }
  }

  // Without any connection for a while, calls do not wait longer than that.
  void fail_stranded(double time) {
    if (phase_ == Phase::kConnecting) return;
    if (pool_.ready() > 0) {
      disconnected_since_ = kNever;
      return;
    }
    disconnected_since_ = std::min(disconnected_since_, time);
    if (time < disconnected_since_ + kStrandedSeconds) return;
    for (; !waiting_.empty(); waiting_.pop_front()) {
      const std::int64_t index = waiting_.front();
      const Call& call = calls_[static_cast<std::size_t>(index)];
      if (call.done) continue;
      if (time < call.taken + kStrandedSeconds) return;
      end_call(index, {kUnavailable, "no connection: " + reason_}, 0);
    }
  }

  // Ends a call that nobody waits for any more, wherever it is.
  void give_up(std::int64_t index, Outcome outcome) {
    const Call& call = calls_[static_cast<std::size_t>(index)];
    if (call.slot >= 0) {
      Stream& stream = streams_[static_cast<std::size_t>(call.slot)];
      stream.connection->cancel(stream);
      stream.call = -1;
    }
    end_call(index, std::move(outcome), 0);
  }

  void end_stream(Stream& stream, std::uint32_t error) {
    const std::int64_t index = stream.call;
    if (index >= 0) {
      Call& call = calls_[static_cast<std::size_t>(index)];
      const bool refused = error == nghttp2::kRefusedStream && !stream.answer.has_status();
      if (refused && call.refusals < kMostRefusals) {
        ++call.refusals;
        call.slot = -1;
        waiting_.push_front(index);
        busy_ = true;
      } else {
        answer(stream, error);
      }
    }
    release(stream);
  }

  void answer(Stream& stream, std::uint32_t error) {
    const Call& call = calls_[static_cast<std::size_t>(stream.call)];
    const bool late = now() >= call.scheduled + settings_.deadline_seconds;
    Outcome outcome = stream.answer.outcome(error, late);
    pool_.count_answer(*stream.connection);
    const auto message = static_cast<std::size_t>(call.message);
    if (outcome.code == kOk && stream.answer.keeps_body() && !kept_[message]) {
      responses_[message] = stream.answer.take_body();
      kept_[message] = true;
    }
    end_call(stream.call, std::move(outcome), stream.answer.message_bytes());
  }

  void end_call(std::int64_t index, Outcome outcome, std::int64_t response_bytes) {
    Call& call = calls_[static_cast<std::size_t>(index)];
    const std::int64_t most = std::numeric_limits<std::int32_t>::max();
    call.latency = now() - call.scheduled;
    call.code = outcome.code;
    call.response_bytes = static_cast<std::int32_t>(std::min(response_bytes, most));
    call.slot = -1;
    call.done = true;
    --live_;
    // A closed loop goes on at once.
    busy_ = true;
    std::string& first = errors_[outcome.code];
    if (outcome.code != kOk && first.empty()) first = std::move(outcome.text);
  }

  Stream& take_stream() {
    if (free_.empty()) {
      free_.push_back(static_cast<std::int32_t>(streams_.size()));
      streams_.emplace_back().slot = free_.back();
    }
    Stream& stream = streams_[static_cast<std::size_t>(free_.back())];
    free_.pop_back();
    return stream;
  }

  void release(Stream& stream) {
    stream.call = -1;
    stream.connection = nullptr;
    free_.push_back(stream.slot);
  }

  // Time -------------------------------------------------------------------------------------

  // Goes to the next phase where this one is over.
  void finish(double time) {
    if (phase_ != Phase::kDraining) return;
    if (live_ > 0 && time >= drain_until_) {
      const Outcome outcome{kCancelled, "given up: unanswered at the end of the load"};
      for (std::int64_t index = 0; index < begun() && live_ > 0; ++index)
        if (!calls_[static_cast<std::size_t>(index)].done) give_up(index, outcome);
    }
    if (live_ > 0) return;
    phase_ = Phase::kDone;
    seconds_ = now();
  }

  double next_time(double until) const {
    double next = std::min(until, pool_.next_time());
    if (phase_ == Phase::kRunning)
      next = std::min(next, is_open_loop() && begun() < settings_.call_count
                                ? settings_.schedule[begun()]
                                : settings_.seconds);
    if (phase_ == Phase::kDraining) next = std::min(next, drain_until_);
    if (unexpired_ < begun())
      next = std::min(next, calls_[static_cast<std::size_t>(unexpired_)].scheduled +
                                settings_.deadline_seconds);
    if (!waiting_.empty()) {
      const double taken = calls_[static_cast<std::size_t>(waiting_.front())].taken;
      next = std::min(next, std::max(taken, disconnected_since_) + kStrandedSeconds);
    }
    return next;
  }

  // Sleeps until a socket is ready or the next time comes, and reads.
  void wait(double until) {
    const double next = next_time(until);
    const double time = now();
    const bool sleeps = !busy_ && next - time > kShortestSleepSeconds;
    // A timer that rings too early does no harm, and setting it costs a system call.
    if (sleeps && (armed_ <= time || armed_ > next)) arm(next);
    std::array<epoll_event, 64> events;
    const int count =
        epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), sleeps ? -1 : 0);
    for (int i = 0; i < count; ++i) {
      auto* connection = static_cast<Connection*>(events[static_cast<std::size_t>(i)].data.ptr);
      if (connection == nullptr) continue;
      const std::uint32_t what = events[static_cast<std::size_t>(i)].events;
      if (what & EPOLLOUT) connection->writable();
      if (what & (EPOLLIN | EPOLLERR | EPOLLHUP)) {
        connection->receive(buffer_);
        collect_ended(*connection);
      }
    }
  }

  void arm(double next) {
    armed_ = next;
    // A little late rather than early: what was rounded must have passed.
    const auto nanoseconds = static_cast<std::int64_t>((start_ + next) * 1e9) + 100;
    itimerspec spec{};
    spec.it_value.tv_sec = static_cast<time_t>(nanoseconds / 1'000'000'000);
    spec.it_value.tv_nsec = static_cast<long>(nanoseconds % 1'000'000'000);
    timerfd_settime(timer_, TFD_TIMER_ABSTIME, &spec, nullptr);
  }

  const Settings settings_;
  const nghttp2::Library library_;
  const Peer peer_;
  RequestHead head_;
  const Descriptor epoll_;
  const Descriptor timer_;
  std::vector<std::uint8_t> buffer_;
  std::deque<Stream> streams_;  // a deque: libnghttp2 keeps addresses
  Pool pool_;

  Phase phase_ = Phase::kConnecting;
  double start_ = 0.0;
  double armed_ = -kNever;
  double drain_until_ = kNever;
  double disconnected_since_ = kNever;
  double seconds_ = 0.0;
  bool busy_ = false;  // there is more to do at once

  std::vector<Call> calls_;
  std::deque<std::int64_t> waiting_;
  std::int64_t live_ = 0;           // begun and not over
  std::int64_t unexpired_ = 0;      // no call before it has a deadline to come
  std::vector<std::int32_t> free_;  // slots of streams

  std::array<std::string, kCodes> errors_;
  std::vector<bool> kept_;
  std::vector<std::string> responses_;
  std::string reason_;  // for which the last connection was lost
};

}  // namespace sharded_infer::load
