// The C interface of held calls, which Python calls through ctypes; see calls.h.
#include "calls.h"

#define EXPORTED __attribute__((visibility("default")))

using namespace sharded_infer::calls;
using sharded_infer::AnsweredRequest;
using sharded_infer::Layout;
using sharded_infer::scheduler::Scheduler;
using sharded_infer::transport::Event;

extern "C" {

EXPORTED Route* sharded_infer_calls_route(const RouteSettings* settings) {
  return new Route(*settings);
}

// Calls that still refer to it; it may be destroyed when there are none.
EXPORTED std::int64_t sharded_infer_calls_route_held(const Route* route) { return route->held; }
EXPORTED void sharded_infer_calls_route_destroy(Route* route) { delete route; }

EXPORTED Calls* sharded_infer_calls_create(Scheduler* scheduler) { return new Calls(*scheduler); }
EXPORTED void sharded_infer_calls_destroy(Calls* calls) { delete calls; }

EXPORTED void sharded_infer_calls_attach(Calls* calls, Respond respond, Finish finish, void* server,
                                         const std::int32_t* forms, std::int64_t count) {
  calls->attach(respond, finish, server, {forms, forms + count});
}

EXPORTED void sharded_infer_calls_set_traced(Calls* calls, std::uint64_t bound) {
  calls->set_traced(bound);
}

EXPORTED void sharded_infer_calls_set_names(Calls* calls, const Name* names, std::int64_t count,
                                            const NamedShare* shares, std::int64_t share_count) {
  calls->set_names(names, count, shares, share_count);
}

EXPORTED void sharded_infer_calls_set_chance(Calls* calls, std::uint64_t seed) {
  calls->set_chance(seed);
}

EXPORTED void sharded_infer_calls_set_kept(Calls* calls, std::uint64_t bound) {
  calls->set_kept(bound);
}

// `left` has room for as many as there are events.
EXPORTED std::int64_t sharded_infer_calls_take(Calls* calls, const Event* events,
                                               std::int64_t count, std::int64_t* left,
                                               Taken* taken) {
  return calls->take(events, count, left, *taken);
}

EXPORTED std::int64_t sharded_infer_calls_cancel(Calls* calls, std::uint64_t call) {
  return calls->cancel(call);
}

// 1 where the calls can be merged so.
EXPORTED std::int32_t sharded_infer_calls_lay_out(Calls* calls, const std::int64_t* handles,
                                                  std::int64_t count, Layout* merged,
                                                  std::int64_t* dense_at) {
  return calls->lay_out(handles, count, *merged, dense_at);
}

EXPORTED double sharded_infer_calls_deadline(Calls* calls, const std::int64_t* handles,
                                             std::int64_t count) {
  return calls->deadline(handles, count);
}

// The calls as `lay_out` laid them out.
EXPORTED void sharded_infer_calls_merge(Calls* calls, const std::int64_t* handles,
                                        std::int64_t count, const Layout* merged,
                                        const std::int64_t* dense_at, std::int64_t* words,
                                        std::int64_t* sizes) {
  calls->merge_laid_out(handles, count, *merged, dense_at, words, sizes);
}

// What `send` takes.
EXPORTED Answers* sharded_infer_calls_answer(Calls* calls, const std::int64_t* handles,
                                             std::int64_t count, const Scores* scores,
                                             const Run* run, AnsweredRequest* counted,
                                             Answered* answered) {
  auto* answers = new Answers;
  *answered = calls->answer(handles, count, scores, *run, *answers, counted);
  return answers;
}

// Frees `answers` too.
EXPORTED void sharded_infer_calls_send(Calls* calls, const std::int64_t* handles,
                                       Answers* answers) {
  calls->send(handles, *answers);
  delete answers;
}

EXPORTED double sharded_infer_calls_refuse(Calls* calls, const std::int64_t* handles,
                                           std::int64_t count, std::int32_t code, const char* words,
                                           std::int64_t words_bytes) {
  return calls->refuse(handles, count, code, {words, std::size_t(words_bytes)});
}

EXPORTED Route* sharded_infer_calls_route_of(Calls* calls, std::int64_t handle) {
  return calls->route_of(handle);
}

// `found` has room for as many as there are handles.
EXPORTED std::int64_t sharded_infer_calls_kept(Calls* calls, const std::int64_t* handles,
                                               std::int64_t count, Kept* found) {
  return calls->kept(handles, count, found);
}

EXPORTED void sharded_infer_calls_describe(Calls* calls, std::int64_t handle,
                                           Description* description) {
  calls->describe(handle, *description);
}

EXPORTED void sharded_infer_calls_release(Calls* calls, const std::int64_t* handles,
                                          std::int64_t count) {
  calls->release(handles, count);
}
}
