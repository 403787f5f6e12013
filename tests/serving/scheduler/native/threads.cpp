// Compiled threads bring requests while others, as Python's do, offer, take, finish and expire.
// Every request must have one fate; the test builds this with sanitizers.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <map>
#include <random>
#include <thread>

#include "scheduler/scheduler.h"

using namespace sharded_infer::scheduler;

namespace {

constexpr int kBringers = 3, kRunners = 2, kQueues = 3;
constexpr std::int64_t kCalls = 4000, kTurns = 3000;

double now() {
  using Seconds = std::chrono::duration<double>;
  return Seconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Call {
  Request request;
  std::atomic<int> fates{0};
};

Request request_of(Queue& queue, std::mt19937& random) {
  Request request;
  request.queue = &queue;
  request.samples = 1 + static_cast<std::int64_t>(random() % 20);
  request.size_bytes = static_cast<std::int64_t>(random() % 3000);
  request.arrived = now();
  if (random() % 2) request.deadline = request.arrived + 1e-4 * static_cast<double>(random() % 100);
  request.priority = 1 + static_cast<std::int64_t>(random() % 10);
  return request;
}

// A compiled thread, whose requests have handles below zero.
void bring(Scheduler& scheduler, SharedQueue* (&queues)[kQueues], Call* calls, std::int64_t first) {
  std::mt19937 random(static_cast<unsigned>(first));
  for (std::int64_t at = first; at < first + kCalls; ++at) {
    Call& call = calls[at];
    call.request = request_of(queues[random() % kQueues]->queue, random);
    call.request.handle = -1 - at;
    if (random() % 4 == 0) std::this_thread::yield();
    const std::lock_guard<std::mutex> lock(scheduler.mutex());
    if (scheduler.batcher().offer(call.request, now()).why != Refusal::kNone) ++call.fates;
    Call& other = calls[first + static_cast<std::int64_t>(random() % kCalls)];
    if (random() % 8 == 0 && scheduler.batcher().cancel(other.request)) ++other.fates;
  }
}

// What Python's threads share, behind their own lock.
struct Callers {
  std::mutex lock;
  std::map<std::int64_t, Queue*> waiting;
  std::int64_t offered = 0, ended = 0;
};

// The queue of a request that has left; counts its fate.
Queue* left(std::int64_t handle, Call* calls, Callers& callers) {
  if (handle < 0) {
    ++calls[-1 - handle].fates;
    return calls[-1 - handle].request.queue;
  }
  ++callers.ended;
  const auto found = callers.waiting.extract(handle);
  return found ? found.mapped() : nullptr;
}

// A thread that calls by handle; true if it ran a batch.
bool run(Scheduler& scheduler, SharedQueue* (&queues)[kQueues], Call* calls, Callers& callers,
         std::mt19937& random, bool offers) {
  const double begin = now();
  Queue* queue = nullptr;
  Handles taken;
  {
    const std::lock_guard<std::mutex> lock(callers.lock);
    if (offers) {
      Queue& wanted = queues[random() % kQueues]->queue;
      const std::int64_t handle = scheduler.offer(request_of(wanted, random), begin);
      ++callers.offered;
      if (handle < 0)
        ++callers.ended;
      else
        callers.waiting[handle] = &wanted;
    }
    if (random() % 16 == 0)
      scheduler.expire(begin);
    else
      scheduler.take(begin);
    taken = scheduler.handles();
    for (std::int64_t n = 0; n < taken.dropped; ++n) left(taken.dropped_handles[n], calls, callers);
    for (std::int64_t n = 0; n < taken.requests; ++n)
      queue = left(taken.request_handles[n], calls, callers);
  }
  if (!taken.batch) return false;
  std::this_thread::yield();
  const double end = now();
  const std::lock_guard<std::mutex> lock(scheduler.mutex());
  scheduler.batcher().finish(taken.batch, *queue, taken.samples, end - begin, end, end - begin);
  return true;
}

}  // namespace

int main() {
  Scheduler scheduler(kRunners, Limits{1000, 100000, 1 << 20});
  std::vector<std::unique_ptr<SharedQueue>> owned;
  SharedQueue* queues[kQueues];
  for (int n = 0; n < kQueues; ++n) {
    const Policy policy{static_cast<Mode>(n), 64, 1e-4, 0};
    owned.push_back(std::make_unique<SharedQueue>(policy, CostTable({1, 64}, {1e-6, 1e-5})));
    queues[n] = owned.back().get();
    scheduler.add_queue(*queues[n]);
  }
  const std::unique_ptr<Call[]> calls(new Call[kBringers * kCalls]);
  Callers callers;
  std::atomic<bool> coming{true};
  std::vector<std::thread> bringers, runners;
  for (int n = 0; n < kBringers; ++n)
    bringers.emplace_back([&, n] { bring(scheduler, queues, calls.get(), n * kCalls); });
  for (int n = 0; n < kRunners; ++n)
    runners.emplace_back([&, n] {
      std::mt19937 random(static_cast<unsigned>(1000 + n));
      for (std::int64_t turn = 0; coming || turn < kTurns; ++turn)
        run(scheduler, queues, calls.get(), callers, random, true);
    });
  for (std::thread& thread : bringers) thread.join();
  coming = false;
  for (std::thread& thread : runners) thread.join();
  std::mt19937 random(1);
  while (scheduler.batcher().counters().requests)
    run(scheduler, queues, calls.get(), callers, random, false);
  std::int64_t wrong = 0;
  for (std::int64_t at = 0; at < kBringers * kCalls; ++at) wrong += calls[at].fates != 1;
  const Counters& counters = scheduler.batcher().counters();
  const bool left_over = counters.samples || counters.size_bytes || counters.running;
  std::printf("%lld calls, %lld without one fate; by handle %lld of %lld; counters %s\n",
              static_cast<long long>(kBringers * kCalls), static_cast<long long>(wrong),
              static_cast<long long>(callers.ended), static_cast<long long>(callers.offered),
              left_over ? "wrong" : "zero");
  return wrong || left_over || callers.ended != callers.offered;
}
