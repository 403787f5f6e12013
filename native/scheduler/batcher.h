// Decides which requests run next and which run together, without threads, clocks or I/O;
// tests/reference/batcher.py is its reference.
//
// Not thread-safe: the caller holds a lock. Every time is in seconds on one clock of the caller's.
#pragma once
#include <algorithm>
#include <vector>

#include "decision.h"
#include "forming.h"
#include "queue.h"
#include "request.h"

namespace sharded_infer::scheduler {

class Batcher {
 public:
  Batcher(std::int64_t slots, const Limits& limits) : cores_(slots), limits_(limits) {
    counters_.slots = slots;
  }
  Batcher(const Batcher&) = delete;
  Batcher& operator=(const Batcher&) = delete;

  const Counters& counters() const { return counters_; }
  // Negative after the number of slots was reduced.
  std::int64_t idle_slots() const { return counters_.slots - counters_.running; }

  void add_queue(Queue& queue) {
    queues_.push_back(&queue);
    fit_slots();
  }

  // Requests that wait in the queue, or still arrive, are run first.
  void remove_queue(Queue& queue) {
    queue.leaving = true;
    if (queue.empty()) forget(queue);
    fit_slots();
  }

  // Queues a request, or says why not.
  Refused offer(Request& request, double now) {
    request.key = key_of(request.arrived, request.deadline, request.priority);
    request.latest_end = latest_end_of(request.arrived, request.deadline);
    if (request.priority < kDefaultPriority) {
      urgent_ = request.priority;
      urgent_seen_ = now;
    }
    Queue& queue = *request.queue;
    queue.saw(request.samples);
    // A deadline that is no number has no place in an order.
    if (!(request.deadline > now)) {
      request.state = State::kExpired;
      return {Refusal::kDeadlinePassed, 0, 0, now};
    }
    if (counters_.requests) {
      const Refused full = room(request, now);
      if (full.why != Refusal::kNone) return full;
    }
    if (request.latest_end != kForever) {
      const double end = expected_end(queue, request.samples, request.key, now);
      if (end > request.latest_end && !measures(request, now)) {
        request.state = State::kInfeasible;
        return {Refusal::kDeadlineUnreachable, 0, 0, end};
      }
    }
    request.sequence = next_sequence_++;
    request.state = State::kWaiting;
    if (queue.leaving && queue.empty()) queues_.push_back(&queue);
    queue.add(request);
    count(request, 1);
    return {};
  }

  // Whether `offer` would refuse a one-sample request now because of its deadline; `priority` is
  // an effective one.
  bool deadline_unreachable(const Queue& queue, double deadline, std::int64_t priority,
                            double now) const {
    if (deadline <= now) return true;
    const double key = key_of(now, deadline, priority);
    return expected_end(queue, 1, key, now) > latest_end_of(now, deadline);
  }

  // Whether every queue's `offer` would refuse a request that has not been read yet, if it is as
  // small and as urgent as any recent one.
  bool deadline_unreachable_anywhere(double deadline, double now) const {
    const double key = key_of(now, deadline, unread_priority(now));
    const double latest_end = latest_end_of(now, deadline);
    for (const Queue* queue : queues_) {
      const auto samples = static_cast<std::int64_t>(std::nearbyint(queue->least_samples()));
      if (expected_end(*queue, samples, key, now) <= latest_end) return false;
    }
    return !queues_.empty();
  }

  // Seconds to the nearest deadline that is reachable; 0 if that is less than a step, or nothing
  // waits.
  double backlog(double now) const {
    if (counters_.requests == 0) return 0.0;
    double reachable = kLongestBacklog;
    for (double step = kLongestBacklog / 2; step >= kBacklogStep; step /= 2)
      if (!deadline_unreachable_anywhere(now + (reachable - step), now)) reachable -= step;
    return reachable <= kBacklogStep ? 0.0 : reachable;
  }

  // Seconds by which an unread request may go before others with its deadline.
  double urgent_lead(double now) const {
    return static_cast<double>(kDefaultPriority - unread_priority(now)) * kPrioritySeconds;
  }

  // Takes the batch to run now, and drops requests that cannot be answered in time.
  void take(double now, Taken& taken) {
    taken.batch = 0;
    taken.requests.clear();
    taken.dropped.clear();
    while (idle_slots() > 0) {
      // A queue that waits for more requests does not delay the other queues.
      Queue* queue = next_queue(now);
      if (!queue) return;
      if (!take_from(*queue, now, taken)) continue;
      taken.batch = ++last_batch_;
      running_.push_back({taken.batch, now + taken.predicted});
      ++counters_.running;
      return;
    }
  }

  // Takes a slot for so long, as it seems, while no request waits; 0 if none is free. `finish`
  // frees it.
  std::int64_t occupy(double seconds, double now) {
    if (counters_.requests != 0 || idle_slots() <= 0) return 0;
    running_.push_back({++last_batch_, now + seconds});
    ++counters_.running;
    return last_batch_;
  }

  // The first request of the next batch; null if no slot is free or no queue is ready.
  Request* next_request(double now) const {
    if (idle_slots() <= 0) return nullptr;
    const Queue* queue = next_queue(now);
    return queue ? &queue->order().head() : nullptr;
  }

  // Seconds that the next batch may wait for more requests; 0 or less: do not wait.
  double linger_seconds(double now) const {
    const Request* first = next_request(now);
    if (!first || !gains_from_batching(*first->queue)) return 0.0;
    const double seconds = first->queue->costs().predicted(first->queue->samples());
    return std::min(seconds, first->latest_end - now - seconds);
  }

  // When to call `take` again if nothing else happens; infinity means never.
  double due(double now) const {
    double earliest = kForever;
    if (idle_slots() <= 0) return earliest;
    for (const Queue* queue : queues_) earliest = std::min(earliest, queue->due(now));
    return earliest;
  }

  // Frees a batch's slot and records its run time.
  void finish(std::int64_t batch, Queue& queue, std::int64_t samples, double seconds, double now,
              double cpu_seconds) {
    const auto at = std::find_if(running_.begin(), running_.end(),
                                 [batch](const Running& run) { return run.batch == batch; });
    if (at != running_.end()) {
      running_.erase(at);
      --counters_.running;
    }
    queue.costs().observe(samples, seconds, now, cpu_seconds);
  }

  // Removes a request; false if it is running or has already left.
  bool cancel(Request& request) {
    if (request.state != State::kWaiting) return false;
    leave(request, State::kCancelled);
    return true;
  }

  // Removes every request whose deadline has passed.
  void expire(double now, std::vector<Request*>& late) {
    late.clear();
    for (const Queue* queue : queues_) queue->order().find_late(now, late);
    for (Request* request : late) leave(*request, State::kExpired);
  }

 private:
  std::int64_t unread_priority(double now) const {
    return now - urgent_seen_ >= kPrioritySecondsRemembered ? kDefaultPriority : urgent_;
  }

  // For so long after a request above the default priority, an unread one may be one too.
  static constexpr double kPrioritySecondsRemembered = 60.0;
  // Seconds: backlogs are told up to the first, to a step of the second.
  static constexpr double kLongestBacklog = 2.0, kBacklogStep = 1.0 / 128;

  struct Running {
    std::int64_t batch;
    double end;
  };

  // With more slots than the device holds, batches would wait there instead of growing.
  void fit_slots() {
    std::int64_t held = 0;
    for (const Queue* queue : queues_)
      if (!queue->leaving) held = std::max(held, queue->policy().device_slots);
    counters_.slots = held ? held : cores_;
  }

  void forget(Queue& queue) {
    const auto at = std::find(queues_.begin(), queues_.end(), &queue);
    if (at != queues_.end()) queues_.erase(at);
  }

  // The ready queue with the earliest key; its batch runs next.
  Queue* next_queue(double now) const {
    Queue* first = nullptr;
    double earliest = kForever;
    for (Queue* queue : queues_) {
      if (queue->empty() || queue->due(now) > now || queue->head_key() >= earliest) continue;
      first = queue;
      earliest = queue->head_key();
    }
    return first;
  }

  void count(const Request& request, std::int64_t sign) {
    counters_.requests += sign;
    counters_.samples += sign * request.samples;
    counters_.size_bytes += sign * request.size_bytes;
  }

  void leave(Request& request, State state) {
    Queue& queue = *request.queue;
    queue.remove(request);
    request.state = state;
    count(request, -1);
    if (queue.leaving && queue.empty()) forget(queue);
  }

  // The limits apply only while others wait: a single request may exceed the whole queue.
  Refused room(const Request& request, double now) const {
    Refused full{};
    if (counters_.requests + 1 > limits_.requests)
      full = {Refusal::kManyRequests, counters_.requests + 1, limits_.requests, 0.0};
    else if (counters_.samples + request.samples > limits_.samples)
      full = {Refusal::kManySamples, counters_.samples + request.samples, limits_.samples, 0.0};
    else if (counters_.size_bytes + request.size_bytes > limits_.size_bytes)
      full = {Refusal::kManyBytes, counters_.size_bytes + request.size_bytes, limits_.size_bytes,
              0.0};
    else
      return full;
    full.end = expected_end(*request.queue, request.samples, request.key, now);
    return full;
  }

  double expected_end(const Queue& queue, std::int64_t samples, double key, double now) const {
    Work work = queue.work_ahead(samples, key);
    for (const Queue* other : queues_)
      if (other != &queue && !other->empty()) work.before += other->work_before(key);
    double start = now;
    if (idle_slots() <= 0) {
      double end = kForever;
      for (const Running& run : running_) end = std::min(end, run.end);
      start = std::max(now, end);
    }
    return start + work.before / static_cast<double>(counters_.slots) + work.last;
  }

  // Whether only its own run time refuses it, and no queued request would measure that time.
  bool measures(const Request& request, double now) const {
    const Queue& queue = *request.queue;
    return queue.empty() && now + queue.costs().predicted(request.samples) > request.latest_end &&
           queue.costs().is_stale(request.samples, now);
  }

  bool take_from(Queue& queue, double now, Taken& taken) {
    if (!drop_late(queue, now, taken.dropped)) return false;
    for (std::int64_t n = early_drops(queue, now, counters_.slots); n > 0; --n)
      drop(queue, State::kInfeasible, taken.dropped);
    const Formed formed = batch_from(queue, queue.order().begin(), 0, now);
    for (std::int64_t n = 0; n < formed.requests; ++n) drop(queue, State::kRunning, taken.requests);
    taken.queue = &queue;
    taken.samples = formed.samples;
    taken.predicted = queue.costs().predicted(formed.samples);
    return true;
  }

  // Drops the first requests that cannot be answered in time; whether others are left.
  bool drop_late(Queue& queue, double now, std::vector<Request*>& dropped) {
    while (!queue.empty()) {
      const Request& head = queue.order().head();
      if (head.deadline <= now)
        drop(queue, State::kExpired, dropped);
      else if (now + queue.costs().predicted(head.samples) > head.latest_end &&
               !queue.costs().is_stale(head.samples, now))
        drop(queue, State::kInfeasible, dropped);
      else
        return true;
    }
    return false;
  }

  void drop(Queue& queue, State state, std::vector<Request*>& gone) {
    Request& head = queue.order().head();
    leave(head, state);
    gone.push_back(&head);
  }

  std::int64_t cores_;
  Limits limits_;
  Counters counters_{};
  std::vector<Queue*> queues_;
  std::vector<Running> running_;
  std::int64_t next_sequence_ = 0;
  std::int64_t last_batch_ = 0;
  // The last priority above the default one, and when its request came.
  std::int64_t urgent_ = kDefaultPriority;
  double urgent_seen_ = -kForever;
};

}  // namespace sharded_infer::scheduler
