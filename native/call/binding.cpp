// The C interface of predict calls; see calls.h.
#include "calls.h"

namespace sharded_infer::call {
extern "C" {

Route* sharded_infer_calls_route(const RouteSettings* settings) { return new Route(*settings); }
std::int64_t sharded_infer_calls_route_calls(const Route* route) { return route->calls; }
void sharded_infer_calls_route_destroy(Route* route) { delete route; }

Calls* sharded_infer_calls_create(scheduler::Scheduler* scheduler) { return new Calls(*scheduler); }
void sharded_infer_calls_destroy(Calls* calls) { delete calls; }

void sharded_infer_calls_attach(Calls* calls, Respond respond, Finish finish, Flush flush,
                                RefuseMessage refuse_message, void* server,
                                const std::int32_t* forms, std::int64_t count,
                                std::int64_t most_calls) {
  Source source;
  source.respond = respond;
  source.finish = finish;
  source.flush = flush;
  source.refuse_message = refuse_message;
  source.server = server;
  source.forms.assign(forms, forms + count);
  source.most_calls = most_calls;
  calls->attach(kGrpc, std::move(source));
}

void sharded_infer_calls_set_traced(Calls* calls, std::uint64_t bound) { calls->set_traced(bound); }

void sharded_infer_calls_attach_http(Calls* calls, RespondHttp respond, Finish finish, void* server,
                                     const std::int32_t* forms, std::int64_t count) {
  Source source;
  source.respond_http = respond;
  source.finish = finish;
  source.server = server;
  source.forms.assign(forms, forms + count);
  calls->attach(kHttp, std::move(source));
}

void sharded_infer_calls_set_names(Calls* calls, const NamedRoute* names, std::int64_t count,
                                   const WeightedRoute* shares, std::int64_t share_count) {
  calls->set_names(names, count, shares, share_count);
}

void sharded_infer_calls_set_chance(Calls* calls, std::uint64_t seed) { calls->set_chance(seed); }

void sharded_infer_calls_set_kept(Calls* calls, std::uint64_t bound) { calls->set_kept(bound); }

void sharded_infer_calls_set_regions(Calls* calls, const SharedRegion* regions, std::int64_t count,
                                     std::int64_t most_bytes) {
  calls->set_regions(regions, count, most_bytes);
}

void sharded_infer_calls_take(Calls* calls, std::int32_t sender, const transport::Event* events,
                              std::int64_t count, Taken* taken) {
  calls->take(Sender(sender), events, count, *taken);
}

bool sharded_infer_calls_take_read(Calls* calls, const ReadCall* read, double now,
                                   scheduler::Refused* refused) {
  return calls->take_read(*read, now, *refused);
}

void sharded_infer_calls_begin(Calls* calls, double now, Begun* begun) {
  calls->begin(now, *begun);
}

Batch* sharded_infer_calls_expire(Calls* calls, double now) { return calls->expire(now); }

Batch* sharded_infer_calls_occupy(Calls* calls, scheduler::SharedQueue* queue, double now) {
  return calls->occupy(queue->queue, now);
}

void sharded_infer_calls_finish(Calls* calls, Batch* batch, const BatchScores* scores,
                                Finished* finished) {
  calls->finish(*batch, *scores, *finished);
}

Batch* sharded_infer_calls_part(Calls* calls, Batch* batch, const std::int64_t* positions,
                                std::int64_t count) {
  return calls->part(*batch, positions, count);
}

double sharded_infer_calls_fail(Calls* calls, Batch* batch, std::int32_t code, const char* words,
                                std::int64_t words_bytes) {
  return calls->fail(*batch, code, {words, std::size_t(words_bytes)});
}

void sharded_infer_calls_end(Calls* calls, Batch* batch, double now, bool by_clock, BatchEnd* end) {
  calls->end(*batch, now, by_clock, *end);
}

void sharded_infer_calls_refuse(Calls* calls, Batch* batch, std::int64_t position,
                                std::int32_t code, const char* words, std::int64_t words_bytes) {
  calls->refuse(*batch, position, code, {words, std::size_t(words_bytes)});
}

void sharded_infer_recording_set(Calls* calls, std::uint64_t bound, std::int64_t most_bytes) {
  calls->recording().set(bound, most_bytes);
}

std::int64_t sharded_infer_recording_dropped(const Calls* calls) {
  return calls->recording().dropped();
}

RecordedBatch* sharded_infer_recording_take(Calls* calls) {
  return calls->recording().take().release();
}

void sharded_infer_recording_finish(Calls* calls, RecordedBatch* batch) {
  calls->recording().finish(std::unique_ptr<RecordedBatch>(batch));
}

Route* sharded_infer_recording_route(const RecordedBatch* batch) {
  return batch->read == batch->calls.size() ? nullptr : batch->calls[batch->read].route;
}

void sharded_infer_recording_read(RecordedBatch* batch, Request* request, RecordedCalls* recorded) {
  read(*batch, *request, *recorded);
}

void sharded_infer_calls_describe(const Batch* batch, std::int64_t position, CallInfo* info) {
  const Call& call = *batch->calls[std::size_t(position)];
  *info = {call.number,
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
           call.json_bytes,
           call.placed.data(),
           std::int64_t(call.placed.size())};
}
}
}  // namespace sharded_infer::call
