// The loop over all endpoints, in the thread that waits.
#include "client.h"

#include <time.h>

#include <algorithm>
#include <string>

#include "base/clock.h"
#include "callbacks.h"

namespace sharded_infer::client {

namespace {

constexpr std::size_t kReadBytes = 256 << 10;
constexpr std::size_t kContinuations = 8;
constexpr double kLongestPoll = 3600.0;

}  // namespace

Client::Client(const Settings& settings) : settings_(settings), buffer_(kReadBytes) {
  if (settings.ca != nullptr) {
    crypto_ = std::make_unique<openssl::Library>();
    tls_ = std::make_unique<Tls>(*crypto_, settings_);
  }
  callbacks_ = Callbacks::make(http2_);
  http2_.options_new(&options_);
  http2_.no_closed_streams(options_, 1);
  if (http2_.max_continuations != nullptr) http2_.max_continuations(options_, kContinuations);
  shared_.reset(new Shared{settings_, http2_, callbacks_, options_, crypto_.get(), tls_.get(),
                           calls_, buffer_});
  for (std::int32_t at = 0; at < settings.endpoint_count; ++at)
    endpoints_.push_back(std::make_unique<Endpoint>(*shared_, settings.endpoints[at]));
}

Client::~Client() {
  clear();
  endpoints_.clear();
  http2_.options_del(options_);
  http2_.callbacks_del(callbacks_);
}

void Client::start(const Outgoing* calls, std::int32_t count) {
  // A connection that its peer has closed since is replaced before anything is written to it.
  poll(0.0);
  const double now = monotonic();
  for (std::int32_t at = 0; at < count; ++at) {
    const Outgoing& wanted = calls[at];
    Call* call = calls_.add();
    call->endpoint = wanted.endpoint;
    call->path = wanted.path;
    call->may_repeat = wanted.may_repeat != 0;
    call->timeout = wanted.timeout;
    call->deadline = now + wanted.timeout;
    call->message = wanted.message;
    call->bytes = std::size_t(wanted.bytes);
    call->traceparent = wanted.traceparent == nullptr ? "" : wanted.traceparent;
    endpoints_[std::size_t(wanted.endpoint)]->start(call);
  }
  tend(now);
}

std::int32_t Client::wait(double seconds, bool all, std::int32_t* ended, std::int32_t most) {
  const double until = monotonic() + seconds;
  std::vector<std::int32_t>& fresh = calls_.fresh();
  for (;;) {
    const double now = monotonic();
    tend(now);
    if (calls_.open() == 0 || (!all && !fresh.empty()) || now >= until) break;
    poll(std::min(next_time(), until) - now);
  }
  const auto count = std::min<std::size_t>(fresh.size(), std::size_t(most));
  std::copy_n(fresh.begin(), count, ended);
  fresh.erase(fresh.begin(), fresh.begin() + std::ptrdiff_t(count));
  return std::int32_t(count);
}

void Client::tend(double now) {
  for (std::int32_t number = 0; number < calls_.count(); ++number) {
    Call* call = calls_[number];
    if (call->state == Call::State::kEnded || now < call->deadline) continue;
    const bool was_sent = call->state == Call::State::kSent;
    end(call, kDeadlineExceeded,
        (was_sent ? "no answer within " : "no connection within ") + seconds_text(call->timeout));
  }
  for (const auto& endpoint : endpoints_) endpoint->tend(now);
}

void Client::end(Call* call, Code code, const std::string& words) {
  Endpoint& endpoint = *endpoints_[std::size_t(call->endpoint)];
  endpoint.give_up(call);
  calls_.end(call, code, std::string(endpoint.name()) + ": " + words);
}

double Client::next_time() const {
  double next = kNever;
  for (const auto& endpoint : endpoints_) next = std::min(next, endpoint->next_time());
  for (std::int32_t number = 0; number < calls_.count(); ++number) {
    const Call* call = const_cast<Calls&>(calls_)[number];
    if (call->state != Call::State::kEnded) next = std::min(next, call->deadline);
  }
  return next;
}

void Client::poll(double seconds) {
  polled_.clear();
  polled_connections_.clear();
  bool has_more = false;
  for (const auto& endpoint : endpoints_)
    endpoint->each_connection([&](Connection& one) {
      polled_.push_back(one.wanted());
      polled_connections_.push_back(&one);
      has_more = has_more || one.has_more();
    });
  seconds = has_more ? 0.0 : std::clamp(seconds, 0.0, kLongestPoll);
  timespec patience;
  patience.tv_sec = time_t(seconds);
  patience.tv_nsec = long(1e9 * (seconds - double(patience.tv_sec)));
  const int ready = ppoll(polled_.data(), polled_.size(), &patience, nullptr);
  if (ready <= 0 && !has_more) return;
  const double now = monotonic();
  for (std::size_t at = 0; at < polled_.size(); ++at)
    if (polled_[at].revents != 0 || polled_connections_[at]->has_more())
      polled_connections_[at]->progress(now);
}

void Client::cancel(std::int32_t number) {
  Call* call = calls_[number];
  if (call->state == Call::State::kEnded) return;
  end(call, kCancelled, "the call was cancelled");
  // The caller knows.
  calls_.fresh().pop_back();
  endpoints_[std::size_t(call->endpoint)]->tend(monotonic());
}

Ended Client::result(std::int32_t number) {
  Call* call = calls_[number];
  if (call->state != Call::State::kEnded) return {nullptr, 0, nullptr, 0, -1};
  std::uint8_t* message = call->answer;
  call->answer = nullptr;
  return {message, std::int64_t(call->got), call->words.data(), std::int64_t(call->words.size()),
          call->code};
}

void Client::clear() {
  for (std::int32_t number = 0; number < calls_.count(); ++number) cancel(number);
  for (const auto& endpoint : endpoints_) endpoint->clear();
  calls_.clear();
}

}  // namespace sharded_infer::client
