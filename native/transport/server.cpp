// The I/O thread's loop, and what other threads call.
#include "server.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

namespace sharded_infer::transport {

namespace {

constexpr std::size_t kReadBytes = 256 << 10;
constexpr int kEvents = 512;
constexpr int kStopAcceptingMicroseconds = 500;
constexpr double kNoticeSeconds = 0.05;
// A fetch waits so long for more and yields so often, then while the I/O thread needs this core,
// for at most so long.
constexpr double kGatherSeconds = 10e-6, kLongestGather = 1e-3;
constexpr int kYields = 6;
// After this many fetches in a row that gathered nothing, only one in this many gathers.
constexpr int kLonely = 16;
constexpr int kRoundMilliseconds = 100, kDrainingRoundMilliseconds = 20;

}  // namespace

thread_local const Server* Server::held_ = nullptr;

Server::Server(const Settings& settings)
    : settings_(settings),
      route_settings_(settings.routes, settings.routes + settings.route_count),
      routes_(settings.routes, settings.route_count),
      first_route_(settings.method_count),
      admission_(settings.rates_of == nullptr
                     ? std::make_shared<Rates>(settings.rate, settings.burst)
                     : static_cast<const Server*>(settings.rates_of)->admission_.rates()),
      buffer_(kReadBytes) {
  for (std::int32_t at = 0; at < settings.method_count; ++at) {
    methods_.push_back(settings.methods[at]);
    method_by_path_.emplace(settings.methods[at].path, at);
  }
  for (const Route& route : route_settings_)
    methods_.push_back({route.path, kUnary, route.access, 1});
  if (settings.listener_count > 0) http2_ = std::make_unique<Http2>();
  if (settings.certificate != nullptr) {
    const auto tls = [&](bool is_http2) {
      return std::make_unique<Tls>(crypto(), settings.certificate, settings.key, settings.client_ca,
                                   is_http2);
    };
    if (settings.listener_count > 0) tls_ = tls(true);
    if (settings.http_listener_count > 0) http_tls_ = tls(false);
  }
  if (settings.token_count >= 0)
    set_tokens(std::make_shared<Tokens>(settings.tokens, settings.token_count, &crypto()));
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  wake_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  fill_spares();
  epoll_event wanted{};
  for (std::int32_t at = 0; at < settings.listener_count; ++at)
    listeners_.push_back({settings.listeners[at], false});
  for (std::int32_t at = 0; at < settings.http_listener_count; ++at)
    listeners_.push_back({settings.http_listeners[at], true});
  for (Listener& listener : listeners_) {
    // Of workers that share a socket, one is woken.
    wanted.events = EPOLLIN | EPOLLEXCLUSIVE;
    wanted.data.ptr = &listener;
    epoll_ctl(epoll_, EPOLL_CTL_ADD, listener.descriptor, &wanted);
  }
  wanted.events = EPOLLIN;
  wanted.data.ptr = &wake_;
  epoll_ctl(epoll_, EPOLL_CTL_ADD, wake_, &wanted);
  // The process's signals are other threads' to handle.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_setname_np(thread_.native_handle(), "transport");
}

Server::~Server() {
  stop();
  for (std::size_t at = events_taken_; at < events_.size(); ++at) {
    std::free(events_[at].data);
    std::free(events_[at].headers);
  }
  for (Reply& one : replies_) std::free(one.answer);
  for (Call* call : spare_calls_) delete call;
  close_listeners();
  for (const int descriptor : {epoll_, wake_})
    if (descriptor >= 0) close(descriptor);
}

const openssl::Library& Server::crypto() {
  if (crypto_ == nullptr) crypto_ = std::make_unique<openssl::Library>();
  return *crypto_;
}

void Server::give_back(const Event* events, int count) {
  for (int at = 0; at < count; ++at) {
    std::free(events[at].data);
    std::free(events[at].headers);
    held_bytes_ -= events[at].bytes;
  }
}

int Server::fetch(Event* events, int held, int most, int milliseconds) {
  give_back(events, held);
  flush();
  std::unique_lock<std::mutex> lock(events_lock_);
  const auto has_come = [this] {
    return ended_ || (!gathering_ && (has_refused_ || events_taken_ < events_.size()));
  };
  if (settings_.busy_poll_seconds > 0.0 && milliseconds > 0 && !looking_out_ && !has_come())
    look_out(lock);
  // Who gathers takes what comes, and is soon done.
  const int patience = gathering_ ? std::max(milliseconds, 1) : milliseconds;
  ++waiting_;
  events_came_.wait_for(lock, std::chrono::milliseconds(patience), has_come);
  --waiting_;
  if (gathering_) return 0;
  if (milliseconds == 0 || events_taken_ < events_.size()) gather(lock, most);
  has_refused_ = false;
  const int count = int(std::min<std::size_t>(std::size_t(most), events_.size() - events_taken_));
  const double now = monotonic();
  for (int at = 0; at < count; ++at) {
    events[at] = events_[events_taken_++];
    events[at].seconds_left -= now;
    untold_ -= events[at].kind == kCancelled;
    fetched_calls_ += events[at].kind == kCall;
  }
  if (events_taken_ == events_.size()) {
    events_.clear();
    events_taken_ = 0;
  } else if (waiting_ > 0) {
    events_came_.notify_one();
  }
  return count > 0 ? count : ended_ ? -1 : 0;
}

void Server::gather(std::unique_lock<std::mutex>& lock, int most) {
  if (lonely_ >= kLonely && ++lonely_ % kLonely != 0) return;
  gathering_ = true;
  const std::int64_t first = handed_;
  std::int64_t seen = first - 1;
  double now = monotonic();
  const double latest = now + kLongestGather;
  while (seen != handed_ && events_.size() - events_taken_ < std::size_t(most)) {
    seen = handed_;
    lock.unlock();
    double until = now + kGatherSeconds;
    // Another process may have had this core for all of the time.
    for (int yields = 0; seen == handed_ && (yields < kYields || now < until); ++yields) {
      sched_yield();
      now = monotonic();
      // What it reads just now is not handed over yet.
      if (!asleep_ && processor_ == sched_getcpu() && now < latest) until = now + kGatherSeconds;
    }
    lock.lock();
  }
  gathering_ = false;
  if (seen > first)
    lonely_ = 0;
  else if (lonely_ < kLonely)
    ++lonely_;
}

void Server::look_out(std::unique_lock<std::mutex>& lock) {
  looking_out_ = true;
  const std::int64_t first = handed_;
  lock.unlock();
  const double until = monotonic() + settings_.busy_poll_seconds;
  while (handed_ == first && !stopping_ && monotonic() < until) sched_yield();
  lock.lock();
  looking_out_ = false;
}

void Server::reply(Reply made, bool wakes) {
  {
    std::lock_guard<std::mutex> lock(replies_lock_);
    replies_.push_back(std::move(made));
    has_replies_ = true;
  }
  if (wakes && asleep_.exchange(false)) wake();
}

void Server::flush() {
  if (asleep_ && has_replies_ && asleep_.exchange(false)) wake();
}

void Server::finish(std::uint64_t call, std::int32_t code, std::string words,
                    std::string trailers) {
  auto ending = std::make_unique<Ending>();
  ending->code = code;
  ending->words = std::move(words);
  ending->trailers = std::move(trailers);
  reply({call, nullptr, true, std::move(ending)}, held_ != this);
}

void Server::refuse_message(std::uint64_t call, Answer* answer, std::int32_t code,
                            std::string words) {
  auto ending = std::make_unique<Ending>();
  ending->code = code;
  ending->words = std::move(words);
  reply({call, answer, false, std::move(ending)}, held_ != this);
}

void Server::drain_streams() {
  draining_streams_ = true;
  wake();
}

void Server::set_fixed_answer(std::int32_t method, std::string message, std::string answer) {
  std::lock_guard<std::mutex> lock(fixed_lock_);
  fixed_[{method, std::move(message)}] = std::move(answer);
  if (method < 64) fixed_methods_ |= std::uint64_t(1) << method;
}

void Server::stop_accepting() {
  accepts_ = false;
  wake();
  while (is_accepting_ && !stopping_) usleep(kStopAcceptingMicroseconds);
}

void Server::drain(double seconds) {
  drain_seconds_ = seconds;
  draining_ = draining_streams_ = true;
  wake();
}

void Server::stop() {
  stopping_ = true;
  wake();
  if (thread_.joinable()) thread_.join();
}

void Server::wake() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_, &one, sizeof one);
}

void Server::hand_over() {
  // Refusals are counted soon, but not one by one.
  const bool notice = refused_now_ && now_ >= next_notice_;
  if (fresh_.empty() && !notice) return;
  if (notice) {
    refused_now_ = false;
    next_notice_ = now_ + kNoticeSeconds;
  }
  bool somebody;
  {
    std::lock_guard<std::mutex> lock(events_lock_);
    has_refused_ = has_refused_ || notice;
    events_.insert(events_.end(), fresh_.begin(), fresh_.end());
    handed_ += std::int64_t(fresh_.size());
    // Who gathers or looks out takes these too.
    somebody = waiting_ > 0 && !gathering_ && !looking_out_;
  }
  fresh_.clear();
  if (somebody) events_came_.notify_one();
}

void Server::take_replies() {
  {
    std::lock_guard<std::mutex> lock(replies_lock_);
    taken_.swap(replies_);
    has_replies_ = false;
  }
  for (Reply& one : taken_) {
    Call* call = find_call(one.call);
    if (call == nullptr || call->finished || call->connection->dead) {
      std::free(one.answer);
      continue;
    }
    if (one.ending != nullptr && !one.ends && call->head.ends_at_error) {
      std::free(one.answer);
      end(call, std::move(*one.ending));
      continue;
    }
    answered_ += one.answer != nullptr && one.ends;
    if (one.answer != nullptr) answer(call, one.answer);
    if (one.ends) end(call, one.ending == nullptr ? Ending() : std::move(*one.ending));
  }
  taken_.clear();
}

// Events of sockets, or none where there is something else to do. A wake-up takes longer than many
// a call: where a core is free, what comes may be looked for without sleeping.
int Server::await_ready(epoll_event* ready, int most) {
  if (settings_.busy_poll_seconds > 0.0) {
    const double until = monotonic() + settings_.busy_poll_seconds;
    do {
      const int count = epoll_wait(epoll_, ready, most, 0);
      if (count != 0 || has_replies_) return count;
      sched_yield();
    } while (monotonic() < until);
  }
  asleep_ = true;
  // A reply that came before has woken nobody.
  const int longest = draining_ ? kDrainingRoundMilliseconds : kRoundMilliseconds;
  const int count = epoll_wait(epoll_, ready, most, has_replies_ ? 0 : longest);
  asleep_ = false;
  return count;
}

void Server::run() {
  std::vector<epoll_event> ready(kEvents);
  now_ = monotonic();
  while (!stopping_) {
    const int count = await_ready(ready.data(), kEvents);
    processor_ = sched_getcpu();
    looked_before_ = now_;
    now_ = monotonic();
    for (int at = 0; at < count; ++at) {
      void* what = ready[std::size_t(at)].data.ptr;
      if (what >= listeners_.data() && what < listeners_.data() + listeners_.size()) {
        accept_all(*static_cast<Listener*>(what));
      } else if (what == &wake_) {
        std::uint64_t times;
        [[maybe_unused]] const ssize_t got = read(wake_, &times, sizeof times);
      } else {
        auto* connection = static_cast<Connection*>(what);
        if (connection->dead) continue;
        const std::uint32_t events = ready[std::size_t(at)].events;
        if (events & EPOLLOUT) touch(connection);
        if (!connection->waits_to_read && events & (EPOLLHUP | EPOLLERR))
          close_soon(connection);
        else if (events & (EPOLLIN | EPOLLHUP | EPOLLERR))
          readable(connection);
      }
    }
    hand_over();
    take_replies();
    upkeep();
    // Flushing may touch no other connection, and may end this one.
    for (std::size_t at = 0; at < touched_.size(); ++at) write_out(touched_[at]);
    touched_.clear();
    bury_dead();
    // The end of a connection cancels its calls.
    hand_over();
    counters_.held_bytes = held_bytes_;
    if (draining_ && listeners_.empty() && counters_.connections == 0 && lingering_.empty()) break;
  }
  for (Connection* group : groups_)
    for (Connection* one = group; one != nullptr; one = one->after) close_soon(one);
  bury_dead();
  read_lingering();
  for (const int spare : spares_) close(spare);
  for (Reply& one : taken_) std::free(one.answer);
  hand_over();
  {
    std::lock_guard<std::mutex> lock(events_lock_);
    ended_ = true;
  }
  events_came_.notify_all();
}

}  // namespace sharded_infer::transport
