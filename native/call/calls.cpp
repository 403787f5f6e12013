// See calls.h: calls, by their handles and numbers.
#include "calls.h"

namespace sharded_infer::call {
namespace {

void copy_header(const ReadCall& read, Call& call) {
  scheduler::Request& request = call.request;
  request.size_bytes = read.size_bytes;
  request.arrived = read.arrived;
  request.deadline = read.deadline;
  request.priority = scheduler::effective_priority(read.priority);
  call.number = read.number;
  call.sender = read.sender;
  call.form = read.form;
  call.encoding = std::int32_t(read.encoding);
  call.outputs.assign(read.outputs, read.outputs + call.route->outputs.size());
  call.trace = read.trace;
  call.id.assign(read.id, std::size_t(read.id_bytes));
  call.label.assign(read.label, std::size_t(read.label_bytes));
  call.regions.reserve(std::size_t(read.placed_count));
  for (std::int64_t at = 0; at < read.placed_count; ++at) call.place(read.placed[at]);
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

bool Calls::take_read(const ReadCall& read, double now, scheduler::Refused& refused) {
  refused = scheduler::Refused();
  Route& route = *read.route;
  Call& call = acquire(route);
  copy_header(read, call);
  Message message;
  message.form = read.is_rewritten != 0 || read.form != kPredict ? kInfer : kPredict;
  message.bytes = {reinterpret_cast<const std::uint8_t*>(read.message), read.message_bytes};
  message.header.header.reports_unknown = read.reports_unknown;
  // The limit of inputs was checked before the message was rewritten.
  if (read.is_rewritten != 0) route.decoding.most_inputs = route.model().inputs();
  // Inputs in shared memory are kept for no other version, which Python counts.
  const bool is_read =
      decode(message, route, call) && !(read.kept != nullptr && route.decoding.shared_bytes != 0);
  route.decoding.most_inputs = route.model().max_inputs;
  if (is_read) refused = queue(call, now);
  if (!is_read || refused.why != scheduler::Refusal::kNone) {
    release(call);
    return false;
  }
  enter(call);
  route.decoding.count_unknown();
  if (read.kept != nullptr) call.message.assign(read.kept, std::size_t(read.kept_bytes));
  const std::string_view key(read.key, std::size_t(read.key_bytes));
  if (recording_.is_on() && route.decoding.shared_bytes == 0 &&
      recording_.chooses(key.empty() ? std::string_view(call.id) : key, random())) {
    call.recorded.assign(read.message, std::size_t(read.message_bytes));
    call.recorded_form = message.form;
  }
  call.json_bytes = read.json_bytes;
  return true;
}

scheduler::Refused Calls::queue(Call& call, double now) {
  call.ahead = scheduler_.batcher().counters().requests;
  const std::lock_guard<std::mutex> lock(scheduler_.mutex());
  return scheduler_.batcher().offer(call.request, now);
}

void Calls::enter(Call& call) {
  if (call.form == kStream) return;
  const auto slot = std::uint32_t(call.number);
  std::vector<std::int64_t>& by_slot = sources_[call.sender].by_slot;
  if (by_slot.size() <= slot) by_slot.resize(slot + std::size_t{1});
  by_slot[slot] = call.request.handle;
}

Call* Calls::find_call(std::uint64_t number, Sender sender) {
  std::int64_t handle = 0;
  const std::vector<std::int64_t>& by_slot = sources_[sender].by_slot;
  if (std::uint32_t(number) < by_slot.size()) handle = by_slot[std::uint32_t(number)];
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
  if (std::uint32_t(call.number) < by_slot.size()) {
    // The place may be a later call's: the client of this one has gone.
    std::int64_t& known = by_slot[std::uint32_t(call.number)];
    if (known == handle) known = 0;
  }
  call.clear();
  free_.push_back(handle);
}

}  // namespace sharded_infer::call
