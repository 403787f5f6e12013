// Predict calls and their batches; see call/calls.h.
#pragma once
#include <cstdint>

#include "abi/counting.h"
#include "abi/exported.h"
#include "abi/reader.h"
#include "abi/scheduler.h"

namespace sharded_infer::transport {
struct Event;
}

namespace sharded_infer::call {

class Route;
class Calls;
struct Batch;

// How a call's message and answer are written; kNoForm: the method is no predict call.
enum Form : std::int32_t { kNoForm = 0, kInfer = 1, kPredict = 2, kStream = 3, kJson = 4 };

// `sharded_infer_transport_respond`, `_finish` and `_flush`.
using Respond = void (*)(void* server, std::uint64_t call, const std::uint8_t* message,
                         std::int64_t bytes, std::int32_t ends);
using Finish = void (*)(void* server, std::uint64_t call, std::int32_t code, const char* words,
                        std::int64_t words_bytes, const char* trailers,
                        std::int64_t trailers_bytes);
using Flush = void (*)(void* server);
// `sharded_infer_transport_refuse_message`.
using RefuseMessage = void (*)(void* server, std::uint64_t call, const std::uint8_t* message,
                               std::int64_t bytes, std::int32_t code, const char* words,
                               std::int64_t words_bytes);
// `sharded_infer_transport_respond_http_later`; true if the answer waits for a flush.
using RespondHttp = bool (*)(void* server, std::uint64_t call, const char* lines,
                             std::int64_t lines_bytes, const std::uint8_t* body,
                             std::int64_t body_bytes);

// The compiled server that a call came from, and that sends its answer.
enum Sender : std::int32_t { kGrpc = 0, kHttp = 1 };

// A loaded version; the texts are copied.
struct RouteSettings {
  const Model* model;
  scheduler::SharedQueue* queue;
  const char* name;
  std::int64_t version;
  const char* const* outputs;
  std::int64_t output_count;
  const char* const* mapped_tables;  // those whose unknown ids are counted, as in `model`
  std::int64_t refuses_non_finite;   // NaN and infinity
};

// A version that a request may name: by a number, a label, or nothing.
struct NamedRoute {
  const char* model;
  const char* version;
  Route* route;
};

// A label with a weight among a model's requests that name no version.
struct WeightedRoute {
  const char* model;
  std::uint64_t seed;  // of the model's routing keys
  const char* label;
  std::uint64_t label_hash;
  std::uint64_t weight;
  Route* route;
};

// An output of a call that its client wants in shared memory.
struct PlacedOutput {
  std::int64_t output;  // position
  const void* region;   // its name
  std::int64_t region_bytes;
  std::int64_t offset;
  std::int64_t byte_size;
};

// A call whose header Python has read, and a usual message with its inputs. All of it is copied.
struct ReadCall {
  Route* route;
  Sender sender;
  std::uint64_t number;
  Form form;
  std::int64_t encoding;  // of HTTP, that the answer may be compressed in: a `transport::Encoding`
  std::int64_t size_bytes, priority;
  double arrived, deadline;
  const char* outputs;  // [outputs]: 0: not wanted, 1: wanted, 2: wanted in binary
  std::int64_t reports_unknown, trace;
  const char* id;
  std::int64_t id_bytes;
  const char* label;
  std::int64_t label_bytes;
  const PlacedOutput* placed;
  std::int64_t placed_count;
  const char* message;  // its header is not looked at
  std::int64_t message_bytes;
  std::int64_t is_rewritten;  // as a ModelInferRequest, when its inputs had been counted
  const char* kept;           // as sent, for another version; or null
  std::int64_t kept_bytes;
  std::int64_t json_bytes;  // of `kept` over HTTP, as CallInfo's
  const char* key;          // the routing key; none: no bytes
  std::int64_t key_bytes;
};

// Calls of a route that were queued, or refused as they came because they cannot be in time: their
// number and seconds.
struct TakenRoute {
  Route* route;
  std::int64_t late;
  double late_seconds;
};

// A call that is to be traced, and the position of its event.
struct TracedCall {
  std::int64_t trace;
  std::int64_t event;
  std::int64_t drawn;  // its client does not decide
};

// Calls among a transport's events, until the next `take` of the thread.
struct Taken {
  std::int64_t queued;
  const std::int64_t* left;  // positions of the events that Python handles; -1 - position: it is
                             // to be traced
  std::int64_t left_count;
  const TakenRoute* routes;
  std::int64_t route_count;
  const TracedCall* traced;
  std::int64_t traced_count;
  Batch* cancelled;  // calls that waited; the first batch, or null
  double backlog;    // as `Batcher::backlog`
};

// Calls of one route that run together, or that left the queue for one reason. A `Batch` begins
// with it, so both have one address.
struct BatchInfo {
  Batch* next;  // of the batches that were dropped
  Route* route;
  scheduler::State state;
  std::int64_t calls, samples, work;
  double started, predicted;
  double deadline;                    // the earliest
  std::int64_t traced, kept, placed;  // numbers of such calls
  InputParts input;
  const std::int64_t* words;
  const std::int64_t* sizes;  // [calls]: samples of each
};

// One call of a batch.
struct CallInfo {
  std::uint64_t number;
  Form form;
  std::int64_t trace;
  std::int64_t samples, work;
  std::int64_t ahead;  // calls that waited when it came
  double arrived, deadline, decoded;
  const void* id;
  std::int64_t id_bytes;
  const void* message;
  std::int64_t message_bytes;
  std::int64_t json_bytes;  // of a message over HTTP that tensors in binary follow; else 0
  const PlacedOutput* placed;
  std::int64_t placed_count;
};

// A decision of `begin`.
struct Begun {
  Batch* batch;       // null: nothing can run now
  Batch* dropped;     // calls that cannot be answered in time
  std::int64_t more;  // another batch is ready
};

// The scores of one output of a batch.
struct Scores {
  const float* values;   // [B] or [B, columns]
  std::int64_t columns;  // 0: one for each sample
};

struct TableCounts {
  const char* table;
  const std::int64_t* samples;  // [B]
};

struct BatchScores {
  const Scores* scores;  // [outputs]
  double lookup_seconds, tower_seconds;
  const TableCounts* defaults;  // not 0: a bag of the sample took the default row
  std::int64_t default_count;
  const TableCounts* unknown;  // ids that shard hosts did not know
  std::int64_t unknown_count;
  double* cells;  // of metrics
  const AnsweredCells* counted;
  double now;  // since 1970
};

// An answer over HTTP that Python compresses and sends.
struct LongAnswer {
  std::uint64_t number;
  const std::uint8_t* data;
  std::int64_t bytes;
  std::int64_t json_bytes;  // of an answer in JSON with outputs in binary behind it; else 0
  std::int64_t encoding;    // a `transport::Encoding`
};

struct Finished {
  double decode_seconds, encode_seconds, slowest_seconds;
  std::int64_t samples;
  const AnsweredRequest* counted;  // [calls]
  const LongAnswer* answers;
  std::int64_t answer_count;
  const std::int64_t* failed;  // positions of calls whose outputs could not be written
  std::int64_t failed_count;
};

// The end of a batch.
struct BatchEnd {
  double backlog;      // as `Batcher::backlog`
  std::int64_t waits;  // answers over HTTP wait for the transport's flush
};

extern "C" {

EXPORTED_KEEPING_GIL Route* sharded_infer_calls_route(const RouteSettings* settings);

// Calls that still refer to it; it may be destroyed when there are none.
EXPORTED_KEEPING_GIL std::int64_t sharded_infer_calls_route_calls(const Route* route);
EXPORTED_KEEPING_GIL void sharded_infer_calls_route_destroy(Route* route);

// The functions below are those of call/calls.h.
EXPORTED_KEEPING_GIL Calls* sharded_infer_calls_create(scheduler::Scheduler* scheduler);
EXPORTED_KEEPING_GIL void sharded_infer_calls_destroy(Calls* calls);
EXPORTED_KEEPING_GIL void sharded_infer_calls_attach(Calls* calls, Respond respond, Finish finish,
                                                     Flush flush, RefuseMessage refuse_message,
                                                     void* server, const std::int32_t forms[],
                                                     std::int64_t count, std::int64_t most_calls);
EXPORTED_KEEPING_GIL void sharded_infer_calls_attach_http(Calls* calls, RespondHttp respond,
                                                          Finish finish, void* server,
                                                          const std::int32_t forms[],
                                                          std::int64_t count);
EXPORTED_KEEPING_GIL void sharded_infer_calls_set_traced(Calls* calls, std::uint64_t bound);
EXPORTED_KEEPING_GIL void sharded_infer_calls_set_names(Calls* calls, const NamedRoute names[],
                                                        std::int64_t count,
                                                        const WeightedRoute shares[],
                                                        std::int64_t share_count);
EXPORTED_KEEPING_GIL void sharded_infer_calls_set_chance(Calls* calls, std::uint64_t seed);
EXPORTED_KEEPING_GIL void sharded_infer_calls_set_kept(Calls* calls, std::uint64_t bound);
EXPORTED_KEEPING_GIL void sharded_infer_calls_set_regions(Calls* calls,
                                                          const SharedRegion regions[],
                                                          std::int64_t count,
                                                          std::int64_t most_bytes);
EXPORTED_KEEPING_GIL void sharded_infer_calls_take(Calls* calls, std::int32_t sender,
                                                   const transport::Event events[],
                                                   std::int64_t count, Taken* taken);
EXPORTED_KEEPING_GIL bool sharded_infer_calls_take_read(Calls* calls, const ReadCall* read,
                                                        double now, scheduler::Refused* refused);
EXPORTED_KEEPING_GIL void sharded_infer_calls_begin(Calls* calls, double now, Begun* begun);
EXPORTED_KEEPING_GIL Batch* sharded_infer_calls_expire(Calls* calls, double now);
EXPORTED_KEEPING_GIL Batch* sharded_infer_calls_occupy(Calls* calls, scheduler::SharedQueue* queue,
                                                       double now);
EXPORTED_KEEPING_GIL void sharded_infer_calls_finish(Calls* calls, Batch* batch,
                                                     const BatchScores* scores, Finished* finished);
EXPORTED_KEEPING_GIL Batch* sharded_infer_calls_part(Calls* calls, Batch* batch,
                                                     const std::int64_t positions[],
                                                     std::int64_t count);
EXPORTED_KEEPING_GIL double sharded_infer_calls_fail(Calls* calls, Batch* batch, std::int32_t code,
                                                     const char* words, std::int64_t words_bytes);
EXPORTED_KEEPING_GIL void sharded_infer_calls_end(Calls* calls, Batch* batch, double now,
                                                  bool by_clock, BatchEnd* end);
EXPORTED_KEEPING_GIL void sharded_infer_calls_refuse(Calls* calls, Batch* batch,
                                                     std::int64_t position, std::int32_t code,
                                                     const char* words, std::int64_t words_bytes);
EXPORTED_KEEPING_GIL void sharded_infer_calls_describe(const Batch* batch, std::int64_t position,
                                                       CallInfo* info);
}

}  // namespace sharded_infer::call
