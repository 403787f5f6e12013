// What the batcher is asked to keep to, and what it answers.
#pragma once
#include <cstdint>
#include <vector>

#include "request.h"

namespace sharded_infer::scheduler {

// Limits on what may wait, over all queues together.
struct Limits {
  std::int64_t requests = 1024;
  std::int64_t samples = std::int64_t{1} << 20;
  std::int64_t size_bytes = std::int64_t{256} << 20;
};

enum class Refusal : std::int64_t {
  kNone,
  kDeadlinePassed,
  kDeadlineUnreachable,
  kManyRequests,
  kManySamples,
  kManyBytes,
};

// Why `offer` refused a request.
struct Refused {
  Refusal why = Refusal::kNone;
  // What would wait, and how much may; of a full queue.
  std::int64_t wanted = 0;
  std::int64_t limit = 0;
  // When the request would be answered.
  double end = 0.0;
};

// What waits and runs, for readers that need no exact figure.
struct Counters {
  std::int64_t requests = 0;
  std::int64_t samples = 0;
  std::int64_t size_bytes = 0;
  std::int64_t slots = 1;
  std::int64_t running = 0;
};

// Requests that run together, and requests that left the queue because their deadlines passed or
// cannot be met. A caller that keeps it allocates nothing a batch.
struct Taken {
  // 0 if nothing can run.
  std::int64_t batch = 0;
  Queue* queue = nullptr;
  std::int64_t samples = 0;
  double predicted = 0.0;
  std::vector<Request*> requests;
  std::vector<Request*> dropped;
};

}  // namespace sharded_infer::scheduler
