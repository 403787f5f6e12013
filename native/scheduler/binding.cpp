// The C interface of the scheduler, which Python calls through ctypes; see scheduler.h.
#include <memory>

#include "scheduler.h"

#define EXPORTED __attribute__((visibility("default")))

using namespace sharded_infer::scheduler;

namespace {

std::unique_lock<std::mutex> held(SharedQueue* shared) {
  return std::unique_lock<std::mutex>(*shared->mutex);
}

}  // namespace

extern "C" {

EXPORTED SharedQueue* sharded_infer_queue_create(std::int64_t mode, std::int64_t max_batch,
                                                 double max_delay, std::int64_t device_slots,
                                                 const std::int64_t* sizes, const double* seconds,
                                                 std::int64_t count) {
  const Policy policy{static_cast<Mode>(mode), max_batch, max_delay, device_slots};
  return new SharedQueue(policy, CostTable({sizes, sizes + count}, {seconds, seconds + count}));
}

EXPORTED void sharded_infer_queue_destroy(SharedQueue* shared) { delete shared; }

// Its `Sums`, which may be read at any time.
EXPORTED const Sums* sharded_infer_queue_sums(SharedQueue* shared) {
  return &shared->queue.order().sums();
}

EXPORTED double sharded_infer_queue_due(SharedQueue* shared, double now) {
  const auto lock = held(shared);
  return shared->queue.due(now);
}

EXPORTED double sharded_infer_queue_oldest_arrival(SharedQueue* shared) {
  const auto lock = held(shared);
  return shared->queue.oldest_arrival();
}

EXPORTED void sharded_infer_queue_saw(SharedQueue* shared, std::int64_t samples) {
  const auto lock = held(shared);
  shared->queue.saw(samples);
}

EXPORTED double sharded_infer_queue_predicted(SharedQueue* shared, std::int64_t samples) {
  const auto lock = held(shared);
  return shared->queue.costs().predicted(samples);
}

EXPORTED std::int64_t sharded_infer_queue_is_stale(SharedQueue* shared, std::int64_t samples,
                                                   double now) {
  const auto lock = held(shared);
  return shared->queue.costs().is_stale(samples, now);
}

EXPORTED void sharded_infer_queue_observe(SharedQueue* shared, std::int64_t samples, double seconds,
                                          double now, double cpu_seconds) {
  const auto lock = held(shared);
  shared->queue.costs().observe(samples, seconds, now, cpu_seconds);
}

EXPORTED Scheduler* sharded_infer_scheduler_create(std::int64_t slots, std::int64_t requests,
                                                   std::int64_t samples, std::int64_t size_bytes) {
  return new Scheduler(slots, Limits{requests, samples, size_bytes});
}

EXPORTED void sharded_infer_scheduler_destroy(Scheduler* scheduler) { delete scheduler; }

// Its `Counters`, which may be read at any time.
EXPORTED const Counters* sharded_infer_scheduler_counters(Scheduler* scheduler) {
  return &scheduler->batcher().counters();
}

EXPORTED void sharded_infer_scheduler_add_queue(Scheduler* scheduler, SharedQueue* shared) {
  scheduler->add_queue(*shared);
}

EXPORTED void sharded_infer_scheduler_remove_queue(Scheduler* scheduler, SharedQueue* shared) {
  scheduler->remove_queue(*shared);
}

EXPORTED std::int64_t sharded_infer_scheduler_deadline_unreachable(
    Scheduler* scheduler, SharedQueue* shared, double deadline, std::int64_t priority, double now) {
  const std::lock_guard<std::mutex> lock(scheduler->mutex());
  return scheduler->batcher().deadline_unreachable(shared->queue, deadline,
                                                   effective_priority(priority), now);
}

EXPORTED double sharded_infer_scheduler_backlog(Scheduler* scheduler, double now) {
  const std::lock_guard<std::mutex> lock(scheduler->mutex());
  return scheduler->batcher().backlog(now);
}

EXPORTED double sharded_infer_scheduler_urgent_lead(Scheduler* scheduler, double now) {
  const std::lock_guard<std::mutex> lock(scheduler->mutex());
  return scheduler->batcher().urgent_lead(now);
}

EXPORTED double sharded_infer_scheduler_linger_seconds(Scheduler* scheduler, double now) {
  const std::lock_guard<std::mutex> lock(scheduler->mutex());
  return scheduler->batcher().linger_seconds(now);
}

EXPORTED double sharded_infer_scheduler_due(Scheduler* scheduler, double now) {
  const std::lock_guard<std::mutex> lock(scheduler->mutex());
  return scheduler->batcher().due(now);
}
}
