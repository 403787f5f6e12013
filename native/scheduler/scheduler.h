// The batcher of a process behind a mutex, and requests by handle.
//
// Compiled threads that own their requests call `batcher()` while they hold `mutex()`, and give
// them handles of their own, below zero. Other callers name theirs by the handle that `offer`
// gives.
#pragma once
#include <deque>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "batcher.h"

namespace sharded_infer::scheduler {

// A queue, and the mutex of whoever changes it.
struct SharedQueue {
  SharedQueue(const Policy& policy, CostTable costs) : queue(policy, std::move(costs)) {}

  Queue queue;
  std::shared_ptr<std::mutex> mutex = std::make_shared<std::mutex>();
};

// The handles of a decision of `take` or `expire`, until the next one.
struct Handles {
  std::int64_t batch = 0;
  std::int64_t samples = 0;
  double predicted = 0.0;
  std::int64_t requests = 0;
  std::int64_t dropped = 0;
  std::int64_t below_zero = 0;  // of the requests' handles
  const std::int64_t* request_handles = nullptr;
  const std::int64_t* dropped_handles = nullptr;
  const std::int64_t* dropped_states = nullptr;
};

class Scheduler {
 public:
  Scheduler(std::int64_t slots, const Limits& limits) : batcher_(slots, limits) {}

  std::mutex& mutex() { return *mutex_; }
  Batcher& batcher() { return batcher_; }
  const Refused& refused() const { return refused_; }
  const Handles& handles() const { return handles_; }

  void add_queue(SharedQueue& shared) {
    const std::lock_guard<std::mutex> lock(*mutex_);
    shared.mutex = mutex_;
    batcher_.add_queue(shared.queue);
  }

  void remove_queue(SharedQueue& shared) {
    const std::lock_guard<std::mutex> lock(*mutex_);
    batcher_.remove_queue(shared.queue);
  }

  // Queues a request and returns its handle, which it has until it leaves; -1 if it is refused.
  std::int64_t offer(const Request& wanted, double now) {
    const std::lock_guard<std::mutex> lock(*mutex_);
    if (unused_.empty()) {
      unused_.push_back(static_cast<std::int64_t>(requests_.size()));
      requests_.emplace_back();
    }
    const std::int64_t handle = unused_.back();
    Request& request = requests_[static_cast<std::size_t>(handle)];
    request = wanted;
    request.handle = handle;
    refused_ = batcher_.offer(request, now);
    if (refused_.why != Refusal::kNone) return -1;
    unused_.pop_back();
    return handle;
  }

  void take(double now) {
    const std::lock_guard<std::mutex> lock(*mutex_);
    batcher_.take(now, taken_);
    show();
  }

  void expire(double now) {
    const std::lock_guard<std::mutex> lock(*mutex_);
    taken_.batch = 0;
    taken_.requests.clear();
    batcher_.expire(now, taken_.dropped);
    show();
  }

  bool cancel(std::int64_t handle) {
    const std::lock_guard<std::mutex> lock(*mutex_);
    const bool waited = batcher_.cancel(requests_[static_cast<std::size_t>(handle)]);
    if (waited) unused_.push_back(handle);
    return waited;
  }

  // The handle of the next batch's first request; -1 if there is none.
  std::int64_t next_request(double now) {
    const std::lock_guard<std::mutex> lock(*mutex_);
    const Request* request = batcher_.next_request(now);
    return request ? request->handle : -1;
  }

 private:
  void show() {
    request_handles_.clear();
    dropped_handles_.clear();
    dropped_states_.clear();
    std::int64_t below_zero = 0;
    for (const Request* request : taken_.requests) {
      request_handles_.push_back(released(*request));
      below_zero += request->handle < 0;
    }
    for (const Request* request : taken_.dropped) {
      dropped_handles_.push_back(released(*request));
      dropped_states_.push_back(static_cast<std::int64_t>(request->state));
    }
    handles_ = {taken_.batch,
                taken_.samples,
                taken_.predicted,
                static_cast<std::int64_t>(request_handles_.size()),
                static_cast<std::int64_t>(dropped_handles_.size()),
                below_zero,
                request_handles_.data(),
                dropped_handles_.data(),
                dropped_states_.data()};
  }

  std::int64_t released(const Request& request) {
    if (request.handle >= 0) unused_.push_back(request.handle);
    return request.handle;
  }

  std::shared_ptr<std::mutex> mutex_ = std::make_shared<std::mutex>();
  Batcher batcher_;
  Refused refused_;
  Taken taken_;
  Handles handles_;
  std::vector<std::int64_t> request_handles_, dropped_handles_, dropped_states_;
  // Requests by handle, and the handles that no request has.
  std::deque<Request> requests_;
  std::vector<std::int64_t> unused_;
};

}  // namespace sharded_infer::scheduler
