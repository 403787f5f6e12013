// Limits of the batcher, and its decisions.
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
