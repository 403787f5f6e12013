// One request as the scheduler sees it, and how its queue batches; see
// tests/reference/request_queue.py, whose doubles and order of operations these files keep.
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>

#include "abi/scheduler.h"

namespace sharded_infer::scheduler {

constexpr double kForever = std::numeric_limits<double>::infinity();
constexpr double kPatience = 1.0;
constexpr double kPrioritySeconds = 0.05;
constexpr std::int64_t kDefaultPriority = 2;
constexpr std::int64_t kLowestPriority = 10;
// Share of a request's time, on arrival, that is kept for writing and sending its answer.
constexpr double kReservedShare = 0.1;
constexpr double kMostReserved = 0.005;

class Queue;

struct Policy {
  Mode mode = Mode::kAuto;
  std::int64_t max_batch = 1024;
  double max_delay = 0.001;
  std::int64_t device_slots = 0;
};

// 0 stands for the default.
inline std::int64_t effective_priority(std::int64_t priority) {
  const std::int64_t bounded = std::min(priority, kLowestPriority);
  return bounded ? bounded : kDefaultPriority;
}

// The sort key of a request, earliest first; `priority` is an effective one.
inline double key_of(double arrived, double deadline, std::int64_t priority) {
  return std::min(deadline, arrived + kPatience) + static_cast<double>(priority) * kPrioritySeconds;
}

// When a request's batch must end for its answer to be in time.
inline double latest_end_of(double arrived, double deadline) {
  if (deadline == kForever) return deadline;
  return deadline - std::min(kReservedShare * (deadline - arrived), kMostReserved);
}

// The caller owns it, and keeps it where it is while it waits.
struct Request {
  // Set by the caller; the scheduler does not read the handle.
  std::int64_t handle = 0;
  Queue* queue = nullptr;
  std::int64_t samples = 0;
  std::int64_t size_bytes = 0;
  double arrived = 0.0;
  double deadline = kForever;
  std::int64_t priority = kDefaultPriority;  // an effective one

  // Set by the scheduler.
  double key = 0.0;
  double latest_end = kForever;
  std::int64_t sequence = 0;
  std::int64_t alone_ns = 0;
  State state = State::kNew;
  // Neighbours in order of arrival, in a batched queue.
  Request* before = nullptr;
  Request* after = nullptr;
};

}  // namespace sharded_infer::scheduler
