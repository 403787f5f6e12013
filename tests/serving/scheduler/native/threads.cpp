// Threads bring and cancel requests while others take, finish and expire them. Every request must
// have one fate; the test builds this with sanitizers.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <random>
#include <thread>

#include "scheduler/scheduler.h"

using namespace sharded_infer::scheduler;

namespace {

constexpr int kBringers = 3, kRunners = 2, kQueues = 3;
constexpr std::int64_t kCalls = 6000;

double now() {
  using Seconds = std::chrono::duration<double>;
  return Seconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Call {
  Request request;  // its handle is the call's position
  std::atomic<int> fates{0};
};

struct Scene {
  Scheduler scheduler{kRunners, Limits{1000, 100000, 1 << 20}};
  std::vector<std::unique_ptr<SharedQueue>> queues;
  std::unique_ptr<Call[]> calls{new Call[kBringers * kCalls]};
  std::atomic<std::int64_t> ran{0};
};

void bring(Scene& scene, std::int64_t first) {
  std::mt19937 random(static_cast<unsigned>(first));
  for (std::int64_t at = first; at < first + kCalls; ++at) {
    Call& call = scene.calls[at];
    Request& request = call.request;
    request.handle = at;
    request.queue = &scene.queues[random() % kQueues]->queue;
    request.samples = 1 + static_cast<std::int64_t>(random() % 20);
    request.size_bytes = static_cast<std::int64_t>(random() % 3000);
    request.arrived = now();
    if (random() % 2)
      request.deadline = request.arrived + 1e-4 * static_cast<double>(random() % 100);
    request.priority = 1 + static_cast<std::int64_t>(random() % 10);
    if (random() % 4 == 0) std::this_thread::yield();
    const std::lock_guard<std::mutex> lock(scene.scheduler.mutex());
    Batcher& batcher = scene.scheduler.batcher();
    if (batcher.offer(request, now()).why != Refusal::kNone) ++call.fates;
    Call& other = scene.calls[first + static_cast<std::int64_t>(random() % kCalls)];
    if (random() % 8 == 0 && batcher.cancel(other.request)) ++other.fates;
  }
}

// Takes a batch and runs it, or drops what is late; false if nothing waits.
bool run(Scene& scene, Taken& taken, std::mt19937& random) {
  const double begin = now();
  taken.batch = 0;
  taken.requests.clear();
  {
    const std::lock_guard<std::mutex> lock(scene.scheduler.mutex());
    Batcher& batcher = scene.scheduler.batcher();
    if (!batcher.counters().requests) return false;
    if (random() % 16 == 0)
      batcher.expire(begin, taken.dropped);
    else
      batcher.take(begin, taken);
  }
  for (const Request* request : taken.dropped) ++scene.calls[request->handle].fates;
  for (const Request* request : taken.requests) ++scene.calls[request->handle].fates;
  scene.ran += static_cast<std::int64_t>(taken.requests.size());
  std::this_thread::yield();
  if (!taken.batch) return true;
  const double end = now();
  const std::lock_guard<std::mutex> lock(scene.scheduler.mutex());
  scene.scheduler.batcher().finish(taken.batch, *taken.queue, taken.samples, end - begin, end,
                                   end - begin);
  return true;
}

}  // namespace

int main() {
  Scene scene;
  for (int n = 0; n < kQueues; ++n) {
    const Policy policy{static_cast<Mode>(n), 64, 1e-4, 0};
    const CostTable costs({1, 64}, {1e-6, 1e-5});
    scene.queues.push_back(std::make_unique<SharedQueue>(policy, costs));
    scene.scheduler.add_queue(*scene.queues.back());
  }
  std::atomic<bool> coming{true};
  std::vector<std::thread> bringers, runners;
  for (int n = 0; n < kBringers; ++n) bringers.emplace_back([&, n] { bring(scene, n * kCalls); });
  for (int n = 0; n < kRunners; ++n)
    runners.emplace_back([&, n] {
      std::mt19937 random(static_cast<unsigned>(1000 + n));
      Taken taken;
      while (run(scene, taken, random) || coming) {}
    });
  for (std::thread& thread : bringers) thread.join();
  coming = false;
  for (std::thread& thread : runners) thread.join();
  std::int64_t wrong = 0;
  for (std::int64_t at = 0; at < kBringers * kCalls; ++at) wrong += scene.calls[at].fates != 1;
  const Counters& counters = scene.scheduler.batcher().counters();
  const bool left =
      counters.requests || counters.samples || counters.size_bytes || counters.running;
  std::printf("%lld calls, %lld without one fate; %lld ran; counters %s\n",
              static_cast<long long>(kBringers * kCalls), static_cast<long long>(wrong),
              static_cast<long long>(scene.ran), left ? "wrong" : "zero");
  return wrong || left;
}
