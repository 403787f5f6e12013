// Predict calls from their messages to their answers.
//
//   take       reads calls among a transport's events and queues them; Python words refusals, and
//              rewrites unusual calls
//   take_read  reads and queues a call that Python has rewritten
//   begin      the batch that runs now, its calls merged into one input; Python runs the tower
//   finish     writes and counts the answers
//   part       moves calls of a batch that failed to a batch of their own
//   fail       ends the calls of a batch with a status
//   end        sends the answers and frees the calls
//
// Not thread-safe but for the scheduler: callers hold the GIL.
#pragma once
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "batch.h"
#include "choice.h"
#include "message.h"
#include "recording.h"
#include "reader/header.h"
#include "reader/regions.h"
#include "scheduler/scheduler.h"
#include "transport/settings.h"

namespace sharded_infer::call {

// A server that calls come from, and that sends their answers.
struct Source {
  Respond respond = nullptr;           // of gRPC
  RespondHttp respond_http = nullptr;  // of HTTP
  Finish finish = nullptr;
  Flush flush = nullptr;
  RefuseMessage refuse_message = nullptr;  // of gRPC
  void* server = nullptr;
  std::vector<std::int32_t> forms;    // a `Form` for each method; later ones have none
  std::vector<std::int64_t> by_slot;  // of its unary calls' numbers: handles, or 0
  std::int64_t most_calls = 0;  // in progress, beyond which Python refuses messages of streams
};

class Calls {
 public:
  explicit Calls(scheduler::Scheduler& scheduler) : scheduler_(scheduler) {}
  Calls(const Calls&) = delete;
  Calls& operator=(const Calls&) = delete;

  void attach(Sender sender, Source source) { sources_[sender] = std::move(source); }
  // Calls are traced if their clients decide so, or with this chance, of 2^64.
  void set_traced(std::uint64_t bound) {
    traces_ = true;
    traced_ = bound;
  }
  // With this chance, of 2^64, the message of a call that names no version is kept.
  void set_kept(std::uint64_t bound) { kept_ = bound; }
  Recording& recording() { return recording_; }
  const Recording& recording() const { return recording_; }
  void set_names(const NamedRoute* names, std::int64_t count, const WeightedRoute* shares,
                 std::int64_t share_count);
  // Seed of the chance by which calls without a routing key go; their numbers, and places in a
  // stream, are the rest.
  void set_chance(std::uint64_t seed) { chance_seed_ = seed; }

  // Registered regions of shared memory; `most_bytes` bounds the inputs of a call.
  void set_regions(const SharedRegion* regions, std::int64_t count, std::int64_t most_bytes) {
    regions_.set(regions, count, most_bytes);
  }

  void take(Sender sender, const transport::Event* events, std::int64_t count, Taken& taken);
  // True: queued. False without a refusal: the message is unusual.
  bool take_read(const ReadCall& read, double now, scheduler::Refused& refused);
  void begin(double now, Begun& begun);
  // Waiting calls whose deadlines have passed, as batches; null: there are none.
  Batch* expire(double now);
  void finish(Batch& batch, const BatchScores& scores, Finished& finished);
  Batch* part(Batch& batch, const std::int64_t* positions, std::int64_t count);
  // Returns the seconds since the calls came, summed.
  double fail(Batch& batch, std::int32_t code, std::string_view words);
  // Ends a call whose outputs `finish` could not write with a status.
  void refuse(Batch& batch, std::int64_t position, std::int32_t code, std::string_view words);
  // Sends the answers, and frees the calls and the slot, whose time the scheduler learns. Returns
  // the backlog, and whether answers over HTTP wait for the transport's flush.
  void end(Batch& batch, double now, bool by_clock, BatchEnd& end);
  // A slot that is free while no call waits, for another task; null: there is none.
  Batch* occupy(scheduler::Queue& queue, double now);

 private:
  static constexpr std::int64_t kFirstHandle = -2;

  // What became of an event; Python handles those that are left.
  enum class Disposition { kLeft, kLeftDrawn, kQueued, kEnded };
  enum class Tracing { kNone, kByClient, kDrawn };

  // What a name means: a route, or several that share its calls.
  struct NameTarget {
    Route* route = nullptr;
    std::uint64_t seed = 0;
    std::vector<Share> shares;
  };

  // The label is null unless a weight decided.
  struct Chosen {
    Route* route = nullptr;
    const std::string* label = nullptr;
  };

  // take.cpp
  Disposition take_call(Sender sender, const transport::Event& event, std::int64_t position);
  Disposition take_end(Sender sender, const transport::Event& event);
  Form form_of(Sender sender, const transport::Event& event) const;
  Chosen choose_route(std::uint64_t chance, const Message& message);
  bool read_outputs(const Message& message, const Route& route, Call& call) const;
  bool decode(const Message& message, Route& route, Call& call);
  bool is_reachable(const scheduler::Request& request, const Route& route);
  Tracing tracing_of(const transport::Event& event);
  TakenRoute& taken(Route& route);
  std::uint64_t random();

  // calls.cpp
  Call& acquire(Route& route);
  void release(Call& call);
  Call& call_of(std::int64_t handle) { return calls_[std::size_t(kFirstHandle - handle)]; }
  Call* find_call(std::uint64_t number, Sender sender);
  void give_up(Call& call);
  void fail_call(const Call& call, std::int32_t code, std::string_view words);
  void enter(Call& call);
  scheduler::Refused queue(Call& call, double now);

  // batches.cpp
  Batch* batch_of(std::vector<Call*> calls, scheduler::State state);
  Batch* dropped_batches(const std::vector<scheduler::Request*>& requests);
  void describe(Batch& batch);
  bool send(const Batch& batch);
  void run(Batch& batch, double now);
  void collect(const Batch& batch, const BatchScores& scores, const Call& call, std::int64_t first,
               CallScores& answer, AnsweredRequest& counted);
  bool place(const Call& call, const BatchScores& scores, std::int64_t first) const;
  static void count_bags(const Batch& batch, const BatchScores& scores);

  scheduler::Scheduler& scheduler_;
  scheduler::Taken decided_;
  std::vector<scheduler::Request*> late_;
  Source sources_[2];  // by `Sender`
  bool traces_ = false;
  std::uint64_t traced_ = 0, kept_ = 0;
  std::uint64_t random_ = 0x9e3779b97f4a7c15u;
  std::uint64_t chance_seed_ = 0;
  std::int64_t last_trace_ = 0;
  std::unordered_map<std::string, NameTarget> names_;  // by model, a zero byte, and version
  std::string key_;
  JsonTensors tensors_;  // of the message that is read
  Regions regions_;
  Recording recording_;
  std::deque<Call> calls_;
  std::vector<std::int64_t> free_;  // handles
  // Buffers of `Taken`, for each thread: others may take before it has read them.
  inline static thread_local std::vector<std::int64_t> left_;
  inline static thread_local std::vector<TakenRoute> taken_;
  inline static thread_local std::vector<TracedCall> traced_calls_;
  std::vector<scheduler::Request*> cancelled_;  // of the last `take`
};

}  // namespace sharded_infer::call
