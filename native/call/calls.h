// Predict calls that stay in compiled code from their message to their answer.
//
//   take    reads the calls among the transport's events, and queues them with the scheduler;
//           what is unusual, or must be refused, is left to Python, which alone words refusals
//   merge   the calls of a batch as one input, on which Python runs the tower
//   answer  writes each call's answer, and what is counted of it
//   send    sends the answers, when they are counted
//
// A call is known by a handle below -1, with the scheduler too. Not thread-safe but for the
// scheduler's part: callers hold the GIL.
#pragma once
#include <algorithm>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/counting.h"
#include "reader/header.h"
#include "scheduler/scheduler.h"
#include "transport/settings.h"
#include "answer_writer.h"
#include "choice.h"
#include "held_call.h"
#include "merge.h"

namespace sharded_infer::calls {

// `sharded_infer_transport_respond` and `sharded_infer_transport_finish`.
using Respond = void (*)(void* server, std::uint64_t call, const std::uint8_t* message,
                         std::int64_t bytes, std::int32_t ends);
using Finish = void (*)(void* server, std::uint64_t call, std::int32_t code, const char* words,
                        std::int64_t words_bytes, const char* trailers,
                        std::int64_t trailers_bytes);

// What a request may say for its model: a number, a label, or nothing.
struct Name {
  const char* model;
  const char* version;
  Route* route;
};

// A label that shares a model's requests which say nothing; `seed` is that of the model's keys.
struct NamedShare {
  const char* model;
  std::uint64_t seed;
  const char* label;
  std::uint64_t hash;
  std::uint64_t weight;
  Route* route;
};

// Calls of a route that ended without being run, and the seconds since they came.
struct Ended {
  std::int64_t late = 0;  // refused: their deadlines cannot be met
  double late_seconds = 0.0;
  std::int64_t cancelled = 0;  // while they waited
  double cancelled_seconds = 0.0;
};

// What `take` did.
struct Taken {
  static constexpr std::int64_t kRoutes = 8;

  std::int64_t calls;   // that are queued now
  std::int64_t ended;   // of all routes
  std::int64_t routes;  // whose they are, the first so many
  Route* touched[kRoutes];
  Ended of_route[kRoutes];

  // What has ended of a route; null where there are too many of them.
  Ended* of(Route& route) {
    Route** end = touched + routes;
    Route** found = std::find(touched, end, &route);
    if (found == end) {
      if (routes == kRoutes) return nullptr;
      touched[routes++] = &route;
      of_route[found - touched] = {};
    }
    return of_route + (found - touched);
  }
};

// What answers took together.
struct Answered {
  double decode_seconds = 0.0;
  double encode_seconds = 0.0;
  double slowest_seconds = 0.0;  // from a call's message to its answer
};

// The answers of a batch, and where each ends.
struct Answers {
  AnswerWriter writer;
  std::vector<std::size_t> ends;
};

// How a batch ran: when it began, on the monotonic clock, and the seconds of its parts.
struct Run {
  double started;
  double lookup_seconds;
  double tower_seconds;
};

// One held call, for Python.
struct Description {
  Route* route;
  std::uint64_t call;
  std::int64_t form;
  std::int64_t samples, size_bytes, priority, ahead;
  double arrived, deadline, decoded;
  std::uint64_t outputs;
  const char* id;
  std::int64_t id_bytes;
  const std::int64_t* words;
  const std::uint8_t* own;
  const std::int64_t* dense_at;
  const std::int64_t* dense_rows;
  const char* label;
  const char* message;
  std::int64_t message_bytes;
  Layout layout;
};

// A call whose message is kept, and which of its batch's samples are its own.
struct Kept {
  std::int64_t form;
  std::int64_t first, samples;
  const char* message;
  std::int64_t message_bytes;
};

class Calls {
 public:
  explicit Calls(scheduler::Scheduler& scheduler) : scheduler_(scheduler) {}

  // Where answers go, and a `Form` for each method of the server that calls come from.
  void attach(Respond respond, Finish finish, void* server, std::vector<std::int32_t> forms) {
    respond_ = respond;
    finish_ = finish;
    server_ = server;
    forms_ = std::move(forms);
  }
  // Calls without a `traceparent` are traced with this chance, of 2^64; then Python takes them.
  void set_traced(std::uint64_t bound) { traced_ = bound; }
  // With this chance, of 2^64, the message of a call that names no version is kept.
  void set_kept(std::uint64_t bound) { kept_ = bound; }
  void set_names(const Name* names, std::int64_t count, const NamedShare* shares,
                 std::int64_t share_count);
  // Calls without a routing key go by chance, which a seed and their numbers make.
  void set_chance(std::uint64_t seed) { chance_seed_ = seed; }

  // Takes what it can: queues calls, or refuses those that would be too late, and removes those
  // whose clients have gone. `left` gets the other events' positions; those that are to be traced
  // are written as -1 - position. Returns their number.
  std::int64_t take(const transport::Event* events, std::int64_t count, std::int64_t* left,
                    Taken& taken);

  // Removes a call from the queue: its handle, or 0 if it does not wait.
  std::int64_t cancel(std::uint64_t call);

  bool lay_out(const std::int64_t* handles, std::int64_t count, Layout& merged,
               std::int64_t* dense_at);
  // The earliest of the calls' deadlines.
  double deadline(const std::int64_t* handles, std::int64_t count);
  void merge_laid_out(const std::int64_t* handles, std::int64_t count, const Layout& merged,
                      const std::int64_t* dense_at, std::int64_t* words, std::int64_t* sizes);
  // Writes the calls' answers, in the order of the batch. `counted` gets what is counted of each.
  Answered answer(const std::int64_t* handles, std::int64_t count, const Scores* scores,
                  const Run& run, Answers& answers, AnsweredRequest* counted);
  // Sends them; `handles` are the same.
  void send(const std::int64_t* handles, const Answers& answers);
  // Ends calls with a status; returns the sum of the seconds since they came.
  double refuse(const std::int64_t* handles, std::int64_t count, std::int32_t code,
                std::string_view words);
  // The calls of a batch that are kept, of which `found` has room for all. Returns their number.
  std::int64_t kept(const std::int64_t* handles, std::int64_t count, Kept* found);
  void describe(std::int64_t handle, Description& description);
  void release(const std::int64_t* handles, std::int64_t count);
  Route* route_of(std::int64_t handle) { return held(handle).route; }

 private:
  static constexpr std::int64_t kFirstHandle = -2;

  enum class Way { kLeft, kTraced, kTaken };

  // What a name means: a route, or several that share its calls.
  struct Meaning {
    Route* route = nullptr;
    std::uint64_t seed = 0;
    std::vector<Share> shares;
  };

  // Where a call goes; the label, if a weight decided.
  struct Chosen {
    Route* route = nullptr;
    const std::string* label = nullptr;
  };
  Way take(const transport::Event& event, Taken& taken);
  Way remove(const transport::Event& event, Taken& taken);
  HeldCall* find_call(std::uint64_t number);
  void finish(const HeldCall& call, std::int32_t code, std::string_view words) {
    finish_(server_, call.call, code, words.data(), std::int64_t(words.size()), nullptr, 0);
  }
  std::vector<HeldCall*> all_held(const std::int64_t* handles, std::int64_t count);
  Chosen find(const transport::Event& event, Bytes message, const Header& header);
  bool read_outputs(Bytes message, const Header& header, const Route& route, std::uint64_t& wanted);
  bool decode(Bytes message, Form form, Route& route, HeldCall& call);
  bool is_reachable(const scheduler::Request& request, const Route& route);
  bool queue(HeldCall& call);
  HeldCall& acquire(Route& route);
  void give_back(HeldCall& call);
  HeldCall& held(std::int64_t handle) { return held_[std::size_t(kFirstHandle - handle)]; }
  std::uint64_t random();

  scheduler::Scheduler& scheduler_;
  Respond respond_ = nullptr;
  Finish finish_ = nullptr;
  void* server_ = nullptr;
  std::vector<std::int32_t> forms_;
  std::uint64_t traced_ = 0;
  std::uint64_t kept_ = 0;
  std::uint64_t random_ = 0x9e3779b97f4a7c15u;
  std::uint64_t chance_seed_ = 0;
  std::unordered_map<std::string, Meaning> meanings_;  // by model, a zero byte, and version
  std::string key_;
  std::deque<HeldCall> held_;
  std::vector<std::int64_t> free_;     // handles
  std::vector<std::int64_t> by_slot_;  // of the transport's call numbers: handles, or 0
};

}  // namespace sharded_infer::calls
