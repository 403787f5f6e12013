// When an endpoint connects, and what becomes of the calls of a connection that is lost.
#include "endpoint.h"

#include <algorithm>
#include <cmath>

namespace sharded_infer::client {

namespace {

constexpr int kMostSends = 2;
constexpr int kFailuresWithoutBackoff = 1;
constexpr double kBackoffFactor = 1.6;
// Of a call that is sent again, of one lost connection and of one that cannot be made.
constexpr int kMostPasses = 4;

}  // namespace

void Endpoint::give_up(Call* call) {
  if (call->connection != nullptr)
    call->connection->abandon(call);
  else
    waiting_.erase(std::remove(waiting_.begin(), waiting_.end(), call), waiting_.end());
}

void Endpoint::tend(double now) {
  for (int pass = 0; pass < kMostPasses; ++pass) {
    tend_once(now);
    const bool is_settled =
        current_ == nullptr ? waiting_.empty() : !current_->is_lost() && !current_->is_leaving();
    if (is_settled) return;
  }
}

void Endpoint::tend_once(double now) {
  if (current_ != nullptr && current_->is_leaving()) {
    count_failure(*current_, now);
    leaving_.push_back(std::move(current_));
  }
  for (std::size_t at = leaving_.size(); at-- > 0;) {
    Connection& one = *leaving_[at];
    one.tend(now);
    take_returned(one);
    for (Call* call : std::vector<Call*>(one.is_lost() ? one.calls : std::vector<Call*>()))
      send_again(call, call->may_repeat, one.reason());
    if (one.is_lost() || one.calls.empty()) leaving_.erase(leaving_.begin() + std::ptrdiff_t(at));
  }
  if (current_ != nullptr) take_returned(*current_);
  if (current_ != nullptr && current_->is_lost()) {
    const std::unique_ptr<Connection> lost = std::move(current_);
    bury(*lost, now);
  }
  if (waiting_.empty() && current_ == nullptr) return;
  if (current_ == nullptr) {
    if (now < retry_at_) return fail_waiting();
    connect(now);
  }
  if (current_->is_open()) {
    for (Call* call : waiting_) current_->begin(call, now);
    waiting_.clear();
  }
  current_->tend(now);
}

void Endpoint::count_failure(const Connection& ended, double now) {
  reason_ = ended.is_lost() ? ended.reason() : "the peer ended the connection";
  if (ended.has_answered()) {
    failures_ = 0;
  } else if (++failures_ > kFailuresWithoutBackoff) {
    retry_at_ = now + backoff();
  }
}

void Endpoint::bury(const Connection& lost, double now) {
  count_failure(lost, now);
  // Whoever waited for it does not wait for the next.
  if (!lost.was_open()) fail_waiting();
  for (Call* call : lost.calls) send_again(call, call->may_repeat, lost.reason());
}

void Endpoint::take_returned(Connection& connection) {
  for (Call* call : connection.returned) send_again(call, true, "the call was refused");
  connection.returned.clear();
}

// A call is sent again once at most, and only if it cannot be, or may be, processed twice.
void Endpoint::send_again(Call* call, bool is_safe, const std::string& why) {
  if (call->state == Call::State::kEnded) return;
  shared_.calls.drop_answer(call);
  call->connection = nullptr;
  call->state = Call::State::kWaiting;
  if (is_safe && call->sends < kMostSends)
    waiting_.push_back(call);
  else
    shared_.calls.end(call, kUnavailable, std::string(settings_.name) + ": " + why);
}

void Endpoint::fail_waiting() {
  for (Call* call : waiting_)
    shared_.calls.end(call, kUnavailable, std::string(settings_.name) + ": " + reason_);
  waiting_.clear();
}

void Endpoint::connect(double now) {
  // One that is still being looked up is not begun again.
  if (addresses_ == nullptr || addresses_->is_known()) addresses_ = Addresses::of(settings_);
  current_ = std::make_unique<Connection>(shared_, settings_, addresses_, now);
}

// Seconds; endpoints that were lost together come back apart.
double Endpoint::backoff() {
  const Settings& settings = shared_.settings;
  const double grown = settings.least_backoff_seconds *
                       std::pow(kBackoffFactor, failures_ - kFailuresWithoutBackoff - 1);
  const double jitter = std::uniform_real_distribution<double>(0.8, 1.2)(random_);
  return jitter * std::min(grown, settings.most_backoff_seconds);
}

double Endpoint::next_time() const {
  double next = kNever;
  each_connection([&next](const Connection& one) { next = std::min(next, one.next_time()); });
  return next;
}

}  // namespace sharded_infer::client
