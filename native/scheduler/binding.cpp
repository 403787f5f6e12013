// The C interface of the scheduler; see scheduler.h.
#include <memory>

#include "scheduler.h"

namespace sharded_infer::scheduler {
namespace {

std::unique_lock<std::mutex> held(const SharedQueue* shared) {
  return std::unique_lock<std::mutex>(*shared->mutex);
}

}  // namespace

extern "C" {

SharedQueue* sharded_infer_queue_create(Mode mode, std::int64_t max_batch, double max_delay,
                                        std::int64_t device_slots, const std::int64_t* sizes,
                                        const double* seconds, std::int64_t count) {
  const Policy policy{mode, max_batch, max_delay, device_slots};
  return new SharedQueue(policy, CostTable({sizes, sizes + count}, {seconds, seconds + count}));
}

void sharded_infer_queue_destroy(SharedQueue* shared) { delete shared; }

const Sums* sharded_infer_queue_sums(const SharedQueue* shared) {
  return &shared->queue.order().sums();
}

double sharded_infer_queue_due(const SharedQueue* shared, double now) {
  const auto lock = held(shared);
  return shared->queue.due(now);
}

double sharded_infer_queue_oldest_arrival(const SharedQueue* shared) {
  const auto lock = held(shared);
  return shared->queue.oldest_arrival();
}

void sharded_infer_queue_saw(SharedQueue* shared, std::int64_t samples) {
  const auto lock = held(shared);
  shared->queue.saw(samples);
}

double sharded_infer_queue_predicted(const SharedQueue* shared, std::int64_t samples) {
  const auto lock = held(shared);
  return shared->queue.costs().predicted(samples);
}

bool sharded_infer_queue_is_stale(const SharedQueue* shared, std::int64_t samples, double now) {
  const auto lock = held(shared);
  return shared->queue.costs().is_stale(samples, now);
}

void sharded_infer_queue_observe(SharedQueue* shared, std::int64_t samples, double seconds,
                                 double now, double cpu_seconds) {
  const auto lock = held(shared);
  shared->queue.costs().observe(samples, seconds, now, cpu_seconds);
}

Scheduler* sharded_infer_scheduler_create(std::int64_t slots, std::int64_t requests,
                                          std::int64_t samples, std::int64_t size_bytes) {
  return new Scheduler(slots, Limits{requests, samples, size_bytes});
}

void sharded_infer_scheduler_destroy(Scheduler* scheduler) { delete scheduler; }

const Counters* sharded_infer_scheduler_counters(Scheduler* scheduler) {
  return &scheduler->batcher().counters();
}

void sharded_infer_scheduler_add_queue(Scheduler* scheduler, SharedQueue* shared) {
  scheduler->add_queue(*shared);
}

void sharded_infer_scheduler_remove_queue(Scheduler* scheduler, SharedQueue* shared) {
  scheduler->remove_queue(*shared);
}

bool sharded_infer_scheduler_deadline_unreachable(Scheduler* scheduler, const SharedQueue* shared,
                                                  double deadline, std::int64_t priority,
                                                  double now) {
  const std::lock_guard<std::mutex> lock(scheduler->mutex());
  return scheduler->batcher().deadline_unreachable(shared->queue, deadline,
                                                   effective_priority(priority), now);
}

double sharded_infer_scheduler_backlog(Scheduler* scheduler, double now) {
  const std::lock_guard<std::mutex> lock(scheduler->mutex());
  return scheduler->batcher().backlog(now);
}

double sharded_infer_scheduler_urgent_lead(Scheduler* scheduler, double now) {
  const std::lock_guard<std::mutex> lock(scheduler->mutex());
  return scheduler->batcher().urgent_lead(now);
}

double sharded_infer_scheduler_linger_seconds(Scheduler* scheduler, double now) {
  const std::lock_guard<std::mutex> lock(scheduler->mutex());
  return scheduler->batcher().linger_seconds(now);
}

double sharded_infer_scheduler_due(Scheduler* scheduler, double now) {
  const std::lock_guard<std::mutex> lock(scheduler->mutex());
  return scheduler->batcher().due(now);
}
}
}  // namespace sharded_infer::scheduler
