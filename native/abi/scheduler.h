// Queues of versions, and what decides which of their requests run next; see scheduler/batcher.h.
// Times are in seconds on one clock. Functions without comments are those of the classes.
#pragma once
#include <cstdint>

#include "abi/exported.h"

namespace sharded_infer::scheduler {

class Scheduler;
struct Request;
struct SharedQueue;

enum class Mode : std::int64_t { kInline, kBatched, kAuto };

// A request's state; it only moves down this list.
enum class State : std::int64_t { kNew, kWaiting, kRunning, kExpired, kInfeasible, kCancelled };

enum class Refusal : std::int64_t {
  kNone,
  kDeadlinePassed,
  kDeadlineUnreachable,
  kManyRequests,
  kManySamples,
  kManyBytes,
};

// The reason why a request was not queued; of a full queue, what would wait of at most `limit`.
struct Refused {
  Refusal why;
  std::int64_t wanted;
  std::int64_t limit;
  double end;  // when the request would be answered
};

// Of waiting requests.
struct Sums {
  std::int64_t requests;
  std::int64_t samples;
  std::int64_t alone_ns;

  void add(const Sums& other);
  void count(const Request& request, std::int64_t sign);
};

// Waiting requests and running batches, for readers that need no exact figure.
struct Counters {
  std::int64_t requests;
  std::int64_t samples;
  std::int64_t size_bytes;
  std::int64_t slots;
  std::int64_t running;
};

extern "C" {

// `sizes` and `seconds` are measured batches.
EXPORTED_KEEPING_GIL SharedQueue* sharded_infer_queue_create(
    Mode mode, std::int64_t max_batch, double max_delay, std::int64_t device_slots,
    const std::int64_t sizes[], const double seconds[], std::int64_t count);
EXPORTED_KEEPING_GIL void sharded_infer_queue_destroy(SharedQueue* shared);

// They may be read at any time.
EXPORTED_KEEPING_GIL const Sums* sharded_infer_queue_sums(const SharedQueue* shared);
EXPORTED_KEEPING_GIL double sharded_infer_queue_due(const SharedQueue* shared, double now);
EXPORTED_KEEPING_GIL double sharded_infer_queue_oldest_arrival(const SharedQueue* shared);
EXPORTED_KEEPING_GIL void sharded_infer_queue_saw(SharedQueue* shared, std::int64_t samples);
EXPORTED_KEEPING_GIL double sharded_infer_queue_predicted(const SharedQueue* shared,
                                                          std::int64_t samples);
EXPORTED_KEEPING_GIL bool sharded_infer_queue_is_stale(const SharedQueue* shared,
                                                       std::int64_t samples, double now);
EXPORTED_KEEPING_GIL void sharded_infer_queue_observe(SharedQueue* shared, std::int64_t samples,
                                                      double seconds, double now,
                                                      double cpu_seconds);

// The limits are those of waiting requests.
EXPORTED_KEEPING_GIL Scheduler* sharded_infer_scheduler_create(std::int64_t slots,
                                                               std::int64_t requests,
                                                               std::int64_t samples,
                                                               std::int64_t size_bytes);
EXPORTED_KEEPING_GIL void sharded_infer_scheduler_destroy(Scheduler* scheduler);

// They may be read at any time.
EXPORTED_KEEPING_GIL const Counters* sharded_infer_scheduler_counters(Scheduler* scheduler);
EXPORTED_KEEPING_GIL void sharded_infer_scheduler_add_queue(Scheduler* scheduler,
                                                            SharedQueue* shared);
EXPORTED_KEEPING_GIL void sharded_infer_scheduler_remove_queue(Scheduler* scheduler,
                                                               SharedQueue* shared);

// `priority` is as the client sent it; 0 stands for the default.
EXPORTED_KEEPING_GIL bool sharded_infer_scheduler_deadline_unreachable(Scheduler* scheduler,
                                                                       const SharedQueue* shared,
                                                                       double deadline,
                                                                       std::int64_t priority,
                                                                       double now);
EXPORTED_KEEPING_GIL double sharded_infer_scheduler_backlog(Scheduler* scheduler, double now);
EXPORTED_KEEPING_GIL double sharded_infer_scheduler_urgent_lead(Scheduler* scheduler, double now);
EXPORTED_KEEPING_GIL double sharded_infer_scheduler_linger_seconds(Scheduler* scheduler,
                                                                   double now);
EXPORTED_KEEPING_GIL double sharded_infer_scheduler_due(Scheduler* scheduler, double now);
}

}  // namespace sharded_infer::scheduler
