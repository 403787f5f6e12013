// The C interface of predict calls; see calls.h.
#include "calls.h"

#define EXPORTED __attribute__((visibility("default")))

using namespace sharded_infer::call;
using sharded_infer::scheduler::Scheduler;
using sharded_infer::scheduler::SharedQueue;
using sharded_infer::transport::Event;

namespace {

BatchInfo* info_of(Batch* batch) { return batch == nullptr ? nullptr : &batch->info; }

}  // namespace

extern "C" {

EXPORTED Route* sharded_infer_calls_route(const RouteSettings* settings) {
  return new Route(*settings);
}

// Calls that still refer to it; it may be destroyed when there are none.
EXPORTED std::int64_t sharded_infer_calls_route_calls(const Route* route) { return route->calls; }
EXPORTED void sharded_infer_calls_route_destroy(Route* route) { delete route; }

EXPORTED Calls* sharded_infer_calls_create(Scheduler* scheduler) { return new Calls(*scheduler); }
EXPORTED void sharded_infer_calls_destroy(Calls* calls) { delete calls; }

EXPORTED void sharded_infer_calls_attach(Calls* calls, Respond respond, Finish finish, void* server,
                                         const std::int32_t* forms, std::int64_t count) {
  calls->attach(respond, finish, server, {forms, forms + count});
}

EXPORTED void sharded_infer_calls_set_traced(Calls* calls, std::int64_t traces,
                                             std::uint64_t bound) {
  calls->set_traced(traces != 0, bound);
}

EXPORTED void sharded_infer_calls_set_names(Calls* calls, const NamedRoute* names,
                                            std::int64_t count, const WeightedRoute* shares,
                                            std::int64_t share_count) {
  calls->set_names(names, count, shares, share_count);
}

EXPORTED void sharded_infer_calls_set_chance(Calls* calls, std::uint64_t seed) {
  calls->set_chance(seed);
}

EXPORTED void sharded_infer_calls_set_kept(Calls* calls, std::uint64_t bound) {
  calls->set_kept(bound);
}

EXPORTED void sharded_infer_calls_take(Calls* calls, const Event* events, std::int64_t count,
                                       Taken* taken) {
  calls->take(events, count, *taken);
}

// 1 if the call was queued.
EXPORTED std::int32_t sharded_infer_calls_offer(Calls* calls, const CallFields* fields, double now,
                                                OfferRefused* refused) {
  return calls->offer(*fields, now, *refused);
}

EXPORTED BatchInfo* sharded_infer_calls_cancel(Calls* calls, std::uint64_t number,
                                               std::int32_t by_python) {
  return info_of(calls->cancel(number, by_python != 0));
}

EXPORTED void sharded_infer_calls_begin(Calls* calls, double now, Begun* begun) {
  calls->begin(now, *begun);
}

EXPORTED BatchInfo* sharded_infer_calls_expire(Calls* calls, double now) {
  return info_of(calls->expire(now));
}

EXPORTED BatchInfo* sharded_infer_calls_occupy(Calls* calls, SharedQueue* queue, double now) {
  return info_of(calls->occupy(queue->queue, now));
}

EXPORTED void sharded_infer_calls_finish(Calls* calls, BatchInfo* batch, const BatchScores* scores,
                                         Finished* finished) {
  calls->finish(Batch::of(batch), *scores, *finished);
}

EXPORTED BatchInfo* sharded_infer_calls_part(Calls* calls, BatchInfo* batch,
                                             const std::int64_t* positions, std::int64_t count) {
  return info_of(calls->part(Batch::of(batch), positions, count));
}

EXPORTED void sharded_infer_calls_fail(Calls* calls, BatchInfo* batch, std::int32_t code,
                                       const char* words, std::int64_t words_bytes,
                                       Failed* failed) {
  calls->fail(Batch::of(batch), code, {words, std::size_t(words_bytes)}, *failed);
}

EXPORTED void sharded_infer_calls_end(Calls* calls, BatchInfo* batch, double now,
                                      std::int32_t by_clock) {
  calls->end(Batch::of(batch), now, by_clock != 0);
}

EXPORTED void sharded_infer_calls_refuse(Calls* calls, BatchInfo* batch, std::int64_t position,
                                         std::int32_t code, const char* words,
                                         std::int64_t words_bytes) {
  calls->refuse(Batch::of(batch), position, code, {words, std::size_t(words_bytes)});
}

EXPORTED void sharded_infer_calls_describe(BatchInfo* batch, std::int64_t position,
                                           CallInfo* info) {
  const Call& call = *Batch::of(batch).calls[std::size_t(position)];
  *info = {call.number,
           call.by_python,
           call.form,
           call.trace,
           call.samples(),
           call.request.samples,
           call.ahead,
           call.request.arrived,
           call.request.deadline,
           call.decoded,
           call.id.data(),
           std::int64_t(call.id.size()),
           call.message.data(),
           std::int64_t(call.message.size()),
           call.placed.data(),
           std::int64_t(call.placed.size())};
}
}
