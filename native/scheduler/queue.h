// One version's queue; `RequestQueue` of tests/reference/request_queue.py is its reference.
#pragma once
#include <cmath>
#include <utility>

#include "cost_table.h"
#include "order.h"
#include "request.h"

namespace sharded_infer::scheduler {

// Seconds of work before a batch, and of the batch.
struct Work {
  double before;
  double last;
};

// Only its batcher changes it.
class Queue {
 public:
  Queue(const Policy& policy, CostTable costs) : policy_(policy), costs_(std::move(costs)) {}
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  const Policy& policy() const { return policy_; }
  CostTable& costs() { return costs_; }
  const CostTable& costs() const { return costs_; }
  const Order& order() const { return order_; }
  bool empty() const { return order_.empty(); }
  std::int64_t size() const { return order_.sums().requests; }
  std::int64_t samples() const { return order_.sums().samples; }
  double head_key() const { return empty() ? kForever : order_.head().key; }
  double least_samples() const { return least_samples_; }

  // The version is being unloaded; only requests that began before still use the queue.
  bool leaving = false;

  // When the request that has waited longest arrived; infinity if none waits.
  double oldest_arrival() const {
    double oldest = kForever;
    for (Order::Cursor at = order_.begin(); at; at.next()) oldest = std::min(oldest, (*at).arrived);
    return oldest;
  }

  // Records the size of a request, whether it is queued or not.
  void saw(std::int64_t samples) {
    const double size = static_cast<double>(samples);
    const double rise = kLeastRises * (size - least_samples_);
    least_samples_ = std::min(size, least_samples_ + rise);
  }

  void add(Request& request) {
    // Whole nanoseconds add to the same sum in any order.
    request.alone_ns =
        static_cast<std::int64_t>(std::nearbyint(costs_.predicted(request.samples) * 1e9));
    order_.add(request);
    if (policy_.mode != Mode::kBatched) return;
    request.before = newest_;
    request.after = nullptr;
    (newest_ ? newest_->after : oldest_) = &request;
    newest_ = &request;
  }

  void remove(Request& request) {
    order_.remove(request);
    if (policy_.mode != Mode::kBatched) return;
    (request.before ? request.before->after : oldest_) = request.after;
    (request.after ? request.after->before : newest_) = request.before;
  }

  // When its batch begins if nothing else arrives; infinity if no request waits.
  double due(double now) const {
    if (empty()) return kForever;
    if (policy_.mode != Mode::kBatched || samples() >= policy_.max_batch) return now;
    // A longer wait would miss the deadline of the first request.
    const double pressed = order_.head().latest_end - costs_.predicted(samples());
    return std::min(oldest_->arrived + policy_.max_delay, pressed);
  }

  // The work ahead of a new request with these samples and this key.
  Work work_ahead(std::int64_t samples, double key) const {
    const double own = costs_.predicted(samples);
    if (empty()) return {0.0, own};
    const Sums ahead = order_.up_to(key);
    const double alone = seconds_of(ahead.alone_ns);
    if (policy_.mode == Mode::kInline) return {alone, own};
    const Work merged = full_batches(ahead.samples + samples);
    if (policy_.mode == Mode::kBatched || merged.before + merged.last < alone + own) return merged;
    return {alone, own};
  }

  // Seconds of work here that run before another queue's request with this key.
  double work_before(double key) const {
    const Sums ahead = order_.up_to(key);
    const double alone = seconds_of(ahead.alone_ns);
    if (policy_.mode == Mode::kInline) return alone;
    const Work batches = full_batches(ahead.samples);
    const double merged = batches.before + batches.last;
    return policy_.mode == Mode::kBatched ? merged : std::min(merged, alone);
  }

  // The full batches that these samples make, and the remainder.
  Work full_batches(std::int64_t samples) const {
    const std::int64_t full = samples / policy_.max_batch, rest = samples % policy_.max_batch;
    return {static_cast<double>(full) * costs_.predicted(policy_.max_batch),
            rest ? costs_.predicted(rest) : 0.0};
  }

 private:
  // How fast `least_samples` follows larger requests.
  static constexpr double kLeastRises = 0.05;

  static double seconds_of(std::int64_t ns) { return static_cast<double>(ns) / 1e9; }

  Policy policy_;
  CostTable costs_;
  Order order_;
  // A moving estimate of the smallest recent request.
  double least_samples_ = 1.0;
  // In order of arrival; a batched queue's delay starts with the first.
  Request* oldest_ = nullptr;
  Request* newest_ = nullptr;
};

}  // namespace sharded_infer::scheduler
