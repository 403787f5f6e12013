// See calls.h: calls, by their handles and numbers.
#include "calls.h"

#include <algorithm>

#include "reader/layout.h"

namespace sharded_infer::call {
namespace {

// Copies the arrays of a call that Python has read, in the layout of those that compiled code
// reads.
void copy_input(const CallFields& fields, Call& call) {
  const Model& model = call.route->model();
  Layout& layout = call.layout;
  layout = Layout();
  layout.batch = fields.batch;
  layout.ids_outside = fields.ids_outside;
  layout.gaps = fields.gaps;
  call.own.assign(fields.own, fields.own + model.features);
  call.dense_rows.assign(fields.dense_rows, fields.dense_rows + model.dense);
  for (const std::uint8_t own : call.own) ++layout.groups[!own].features;
  for (int number = 0; number < 2; ++number) {
    Group& group = layout.groups[number];
    if (group.features == 0) continue;
    group.bags = number == 0 ? layout.batch : 1;
    group.ids = fields.groups[number].ids;
    group.weighted = fields.groups[number].weights != nullptr;
  }
  call.dense_at.resize(std::size_t(model.dense));
  place(model, layout, call.dense_at.data(), call.dense_rows.data());
  call.reserve(layout.words);
  std::int64_t* words = call.words.get();
  for (int number = 0; number < 2; ++number) {
    const Group& group = layout.groups[number];
    const GroupArrays& from = fields.groups[number];
    if (group.features == 0) continue;
    std::copy_n(from.lengths, group.features * group.bags, words + group.lengths_at);
    std::copy_n(from.values, group.ids, words + group.values_at);
    if (group.weighted)
      std::copy_n(from.weights, group.ids, reinterpret_cast<float*>(words + group.weights_at));
  }
  for (std::int64_t dense = 0; dense < model.dense; ++dense)
    std::copy_n(fields.dense[dense], fields.dense_rows[dense] * model.widths[dense],
                reinterpret_cast<float*>(words + call.dense_at[std::size_t(dense)]));
}

void copy_texts(const CallFields& fields, Call& call) {
  call.id.assign(fields.id, std::size_t(fields.id_bytes));
  call.label.assign(fields.label, std::size_t(fields.label_bytes));
  if (fields.message != nullptr)
    call.message.assign(fields.message, std::size_t(fields.message_bytes));
  call.regions.reserve(std::size_t(fields.placed_count));
  for (std::int64_t at = 0; at < fields.placed_count; ++at) call.place(fields.placed[at]);
}

}  // namespace

void Calls::set_names(const NamedRoute* names, std::int64_t count, const WeightedRoute* shares,
                      std::int64_t share_count) {
  names_.clear();
  for (std::int64_t at = 0; at < count; ++at)
    names_[std::string(names[at].model) + '\0' + names[at].version].route = names[at].route;
  for (std::int64_t at = 0; at < share_count; ++at) {
    const WeightedRoute& share = shares[at];
    NameTarget& target = names_[std::string(share.model) + '\0'];
    target.seed = share.seed;
    target.shares.push_back({share.label, share.label_hash, share.weight, share.route});
  }
}

bool Calls::offer(const CallFields& fields, double now, scheduler::Refused& refused) {
  Route& route = *fields.route;
  Call& call = acquire(route);
  scheduler::Request& request = call.request;
  request.size_bytes = fields.size_bytes;
  request.arrived = fields.arrived;
  request.deadline = fields.deadline;
  request.priority = scheduler::effective_priority(fields.priority);
  call.number = fields.number;
  call.sender = fields.by_python != 0 ? kPython : kGrpc;
  call.form = Form(fields.form);
  call.outputs.assign(fields.outputs, fields.outputs + route.outputs.size());
  call.reports_unknown = fields.reports_unknown != 0;
  call.trace = fields.traced;
  if (call.reports_unknown)
    call.unknown.assign(fields.unknown, fields.unknown + route.model().mapped);
  copy_texts(fields, call);
  copy_input(fields, call);
  request.samples = work_units(route.model(), call.layout, call.own.data(), call.words.get());
  call.decoded = now;
  refused = queue(call, now);
  if (refused.why != scheduler::Refusal::kNone) {
    release(call);
    return false;
  }
  enter(call);
  return true;
}

scheduler::Refused Calls::queue(Call& call, double now) {
  call.ahead = scheduler_.batcher().counters().requests;
  const std::lock_guard<std::mutex> lock(scheduler_.mutex());
  return scheduler_.batcher().offer(call.request, now);
}

void Calls::enter(Call& call) {
  if (call.by_python()) by_number_[call.number] = call.request.handle;
  if (call.by_python() || call.form == kStream) return;
  const auto slot = std::uint32_t(call.number);
  std::vector<std::int64_t>& by_slot = sources_[call.sender].by_slot;
  if (by_slot.size() <= slot) by_slot.resize(slot + std::size_t{1});
  by_slot[slot] = call.request.handle;
}

Call* Calls::find_call(std::uint64_t number, Sender sender) {
  std::int64_t handle = 0;
  const std::vector<std::int64_t>& by_slot = sources_[sender].by_slot;
  if (sender == kPython) {
    const auto found = by_number_.find(number);
    if (found != by_number_.end()) handle = found->second;
  } else if (std::uint32_t(number) < by_slot.size()) {
    handle = by_slot[std::uint32_t(number)];
  }
  if (handle == 0) return nullptr;
  Call& call = call_of(handle);
  return call.number == number && call.sender == sender ? &call : nullptr;
}

Call& Calls::acquire(Route& route) {
  if (free_.empty()) {
    free_.push_back(kFirstHandle - std::int64_t(calls_.size()));
    calls_.emplace_back();
  }
  Call& call = call_of(free_.back());
  call.request = scheduler::Request();
  call.request.handle = free_.back();
  call.request.queue = &route.queue->queue;
  free_.pop_back();
  call.route = &route;
  ++route.calls;
  return call;
}

void Calls::release(Call& call) {
  const std::int64_t handle = call.request.handle;
  std::vector<std::int64_t>& by_slot = sources_[call.sender].by_slot;
  if (call.by_python()) {
    by_number_.erase(call.number);
  } else if (std::uint32_t(call.number) < by_slot.size()) {
    // The place may be a later call's: the client of this one has gone.
    std::int64_t& known = by_slot[std::uint32_t(call.number)];
    if (known == handle) known = 0;
  }
  call.clear();
  free_.push_back(handle);
}

}  // namespace sharded_infer::call
