// The batcher of a process, and its mutex: whoever calls `batcher()` holds it.
#pragma once
#include <memory>
#include <mutex>
#include <utility>

#include "batcher.h"

namespace sharded_infer::scheduler {

// A queue, and the mutex of whoever changes it.
struct SharedQueue {
  SharedQueue(const Policy& policy, CostTable costs) : queue(policy, std::move(costs)) {}

  Queue queue;
  std::shared_ptr<std::mutex> mutex = std::make_shared<std::mutex>();
};

class Scheduler {
 public:
  Scheduler(std::int64_t slots, const Limits& limits) : batcher_(slots, limits) {}

  std::mutex& mutex() { return *mutex_; }
  Batcher& batcher() { return batcher_; }

  void add_queue(SharedQueue& shared) {
    const std::lock_guard<std::mutex> lock(*mutex_);
    shared.mutex = mutex_;
    batcher_.add_queue(shared.queue);
  }

  void remove_queue(SharedQueue& shared) {
    const std::lock_guard<std::mutex> lock(*mutex_);
    batcher_.remove_queue(shared.queue);
  }

 private:
  std::shared_ptr<std::mutex> mutex_ = std::make_shared<std::mutex>();
  Batcher batcher_;
};

}  // namespace sharded_infer::scheduler
