// Which requests of a queue run together, and which are dropped so that others are answered;
// tests/reference/batch_forming.py is its reference and says why.
#pragma once
#include "queue.h"

namespace sharded_infer::scheduler {

// Joining must save this share of a request's cost alone, or shorten the total wait.
constexpr double kWorthwhileSaving = 0.25;
// A batch must score this many times the samples per second, before requests are dropped for it.
constexpr double kWorthwhileGain = 1.25;

struct Formed {
  std::int64_t requests;
  std::int64_t samples;
};

// Whether a request should join a batch of `requests` instead of running after it.
//   added: seconds that joining adds to the batch
//   behind: requests that wait longer if it does not join, itself included
inline bool is_worth_batching(const Queue& queue, std::int64_t samples, double added,
                              std::int64_t requests, std::int64_t behind) {
  const double alone = queue.costs().predicted(samples);
  const double saved = alone - added;
  return saved >= kWorthwhileSaving * alone ||
         saved * static_cast<double>(behind) > added * static_cast<double>(requests);
}

// The batch that starts with the request at a cursor, before which `position` requests wait.
inline Formed batch_from(const Queue& queue, Order::Cursor at, std::int64_t position, double now) {
  const Policy& policy = queue.policy();
  const CostTable& costs = queue.costs();
  const std::int64_t waiting = queue.size();
  std::int64_t samples = (*at).samples, end = position + 1;
  double seconds = costs.predicted(samples), earliest_end = (*at).latest_end;
  at.next();
  for (; policy.mode != Mode::kInline && end < waiting; at.next(), ++end) {
    const Request& request = *at;
    const std::int64_t together = samples + request.samples;
    const double longer = costs.predicted(together);
    earliest_end = std::min(earliest_end, request.latest_end);
    if (together > policy.max_batch || now + longer > earliest_end) break;
    if (policy.mode == Mode::kAuto &&
        !is_worth_batching(queue, request.samples, longer - seconds, end - position, waiting - end))
      break;
    samples = together;
    seconds = longer;
  }
  return {end - position, samples};
}

// Whether a batch of all waiting requests would gain from another request like the first.
inline bool gains_from_batching(const Queue& queue) {
  const std::int64_t samples = queue.samples();
  if (queue.policy().mode == Mode::kInline || samples >= queue.policy().max_batch) return false;
  const std::int64_t one = queue.order().head().samples;
  const CostTable& costs = queue.costs();
  const double added = costs.predicted(samples + one) - costs.predicted(samples);
  return added <= (1.0 - kWorthwhileSaving) * costs.predicted(one);
}

// Whether the last deadline is missed even if all earlier requests run in full batches.
inline bool is_late(const Queue& queue, double start, std::int64_t slots) {
  const auto [last, samples] = queue.order().last_with_deadline();
  if (!last) return false;
  const Work work = queue.full_batches(samples);
  return start + work.before / static_cast<double>(slots) + work.last > last->latest_end;
}

// How many of the first requests should be dropped, because they force a small batch.
inline std::int64_t early_drops(const Queue& queue, double now, std::int64_t slots) {
  const CostTable& costs = queue.costs();
  const std::int64_t largest = queue.policy().max_batch;
  const Request& head = queue.order().head();
  const double alone = costs.predicted(head.samples);
  const double whole = costs.predicted(std::min(queue.samples(), largest));
  const double left = head.latest_end - now;
  if (queue.policy().mode == Mode::kInline || !(alone <= left && left < whole)) return 0;
  if (queue.samples() < slots * largest && !is_late(queue, now + alone, slots)) return 0;
  const std::int64_t small = batch_from(queue, queue.order().begin(), 0, now).samples;
  double best = kWorthwhileGain * static_cast<double>(small) / costs.predicted(small);
  std::int64_t given_up = 0;
  for (const double share : {1.0, 0.5, 0.25}) {
    const double enough = share * whole;
    Order::Cursor at = queue.order().begin();
    std::int64_t position = at.skip(now, enough);
    while (at && !((*at).latest_end - now >= std::max(enough, costs.predicted((*at).samples)))) {
      at.next();
      position += 1 + at.skip(now, enough);
    }
    if (!at) {
      at = queue.order().begin();
      position = 0;
    }
    const std::int64_t samples = batch_from(queue, at, position, now).samples;
    const double rate = static_cast<double>(samples) / costs.predicted(samples);
    if (rate > best) {
      best = rate;
      given_up = position;
    }
  }
  return given_up;
}

}  // namespace sharded_infer::scheduler
