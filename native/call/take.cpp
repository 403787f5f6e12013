// See calls.h: calls among a transport's events.
#include <algorithm>

#include "base/clock.h"
#include "calls.h"
#include "transport/request_head.h"

namespace sharded_infer::call {
namespace {

constexpr std::int32_t kDeadlineExceeded = 4;

// Messages of a stream differ by their places. As `PredictCalls.chance`.
std::uint64_t chance_of(const transport::Event& event) {
  return event.call ^ std::uint64_t(event.place) << 40;
}

bool all_finite(const float* values, std::int64_t count) {
  // The sum of differences with themselves is 0 unless one is NaN or infinite; it vectorises.
  float sum = 0.0f;
  for (std::int64_t at = 0; at < count; ++at) sum += values[at] - values[at];
  return sum == 0.0f;
}

// The numbers of sequences, whose bits lie among the ids.
bool numbers_are_finite(const Call& call, const Model& model) {
  constexpr std::int64_t kExponent = 0x7f800000;
  for (int number = 0; number < 2; ++number) {
    const Group& group = call.layout.groups[number];
    const std::int64_t* lengths = call.words.get() + group.lengths_at;
    const std::int64_t* values = call.words.get() + group.values_at;
    for (std::int64_t feature = 0; feature < model.features; ++feature) {
      if (call.own[std::size_t(feature)] == (number == 1)) continue;
      std::int64_t count = 0;
      for (std::int64_t bag = 0; bag < group.bags; ++bag) count += lengths[bag];
      const bool checked = model.numbers[model.sources[feature]] > 0;
      for (std::int64_t at = 0; checked && at < count; ++at)
        if ((values[at] & kExponent) == kExponent) return false;
      lengths += group.bags;
      values += count;
    }
  }
  return true;
}

bool is_finite(const Call& call, const Model& model) {
  for (const Group& group : call.layout.groups) {
    const auto* weights = reinterpret_cast<const float*>(call.words.get() + group.weights_at);
    if (group.weighted && !all_finite(weights, group.ids)) return false;
  }
  if (model.has_numbers && !numbers_are_finite(call, model)) return false;
  for (std::int64_t dense = 0; dense < model.dense; ++dense)
    if (!all_finite(call.dense(dense), call.dense_rows[std::size_t(dense)] * model.widths[dense]))
      return false;
  return true;
}

}  // namespace

bool Calls::read_outputs(const Message& message, const Route& route, Call& call) const {
  const JsonHeader& json = message.header;
  const Header& header = json.header;
  const auto wanted = std::uint8_t(json.binary_default != 0 ? 2 : 1);
  call.outputs.assign(route.outputs.size(), header.output_count == 0 ? wanted : 0);
  call.regions.reserve(std::size_t(header.output_count));
  for (std::int64_t at = 0; at < header.output_count; ++at) {
    const Text& text = header.outputs[at];
    const int output = route.output_of({message.bytes.data + text.start, text.size});
    if (output < 0) return false;
    const bool says = (json.binary_said >> at & 1) != 0;
    const auto said = std::uint8_t(json.binary_wanted >> at & 1 ? 2 : 1);
    call.outputs[std::size_t(output)] = says ? said : wanted;
    const OutputPlace& place = header.places[at];
    if (place.region.size == 0) continue;
    const Bytes region{message.bytes.data + place.region.start, place.region.size};
    if (!regions_.holds({region, place.offset, place.byte_size})) return false;
    call.place({output, region.data, region.size, place.offset, place.byte_size});
  }
  return true;
}

void Calls::take(Sender sender, const transport::Event* events, std::int64_t count, Taken& taken) {
  left_.clear();
  taken_.clear();
  traced_calls_.clear();
  cancelled_.clear();
  taken = Taken();
  for (std::int64_t at = 0; at < count; ++at) {
    const transport::Event& event = events[at];
    Disposition disposition = Disposition::kLeft;
    if (event.kind == transport::kCall || event.kind == transport::kMessage)
      disposition = take_call(sender, event, at);
    if (event.kind == transport::kCancelled) disposition = take_end(sender, event);
    taken.queued += disposition == Disposition::kQueued;
    if (disposition == Disposition::kLeft) left_.push_back(at);
    if (disposition == Disposition::kLeftDrawn) left_.push_back(-1 - at);
  }
  taken.left = left_.data();
  taken.left_count = std::int64_t(left_.size());
  taken.routes = taken_.data();
  taken.route_count = std::int64_t(taken_.size());
  taken.cancelled = dropped_batches(cancelled_);
  taken.traced = traced_calls_.data();
  taken.traced_count = std::int64_t(traced_calls_.size());
  const std::lock_guard<std::mutex> lock(scheduler_.mutex());
  taken.backlog = scheduler_.batcher().backlog(monotonic());
}

Calls::Disposition Calls::take_call(Sender sender, const transport::Event& event,
                                    std::int64_t position) {
  const Form form = form_of(sender, event);
  if (form == kNoForm || event.encoding != transport::kIdentity) return Disposition::kLeft;
  const auto in_progress = std::int64_t(calls_.size() - free_.size());
  if (form == kStream && in_progress >= sources_[sender].most_calls) return Disposition::kLeft;
  const double arrived = monotonic();
  Message message;
  if (!read_message(form, event, message, tensors_)) return Disposition::kLeft;
  const bool may_be_kept = kept_ != 0 && message.version.empty();
  const Header& header = message.header.header;
  const Chosen chosen = choose_route(chance_of(event), message);
  Route* const route = chosen.route;
  if (route == nullptr) return Disposition::kLeft;
  Call& call = acquire(*route);
  scheduler::Request& request = call.request;
  request.size_bytes = event.bytes;
  request.arrived = arrived;
  request.deadline = arrived + event.seconds_left;
  if (header.timeout_us != 0)
    request.deadline = std::min(request.deadline, arrived + double(header.timeout_us) / 1e6);
  request.priority = scheduler::effective_priority(header.priority);
  call.number = event.call;
  call.sender = sender;
  call.encoding = message.encoding;
  call.json_bytes = message.json_bytes;
  call.form = form;
  const auto* id = reinterpret_cast<const char*>(event.data) + header.id.start;
  call.id.assign(id, std::size_t(header.id.size));
  if (chosen.label != nullptr) call.label = *chosen.label;
  const Tracing tracing = tracing_of(event);
  const auto refuse_late = [&] {
    fail_call(call, kDeadlineExceeded, transport::kTooLate);
    TakenRoute& counts = taken(*route);
    ++counts.late;
    counts.late_seconds += monotonic() - arrived;
    release(call);
    return Disposition::kEnded;
  };
  // Under overload most calls are refused, so one that must be refused is not decoded, and Python
  // decodes none again that is too late because others wait.
  if (tracing == Tracing::kNone && !is_reachable(request, *route)) return refuse_late();
  // Inputs in shared memory are kept for no other version, which Python counts.
  const bool is_read = read_outputs(message, *route, call) && decode(message, *route, call) &&
                       !(may_be_kept && route->decoding.shared_bytes != 0);
  const auto refused = is_read ? queue(call, call.decoded).why : scheduler::Refusal::kNone;
  if (refused == scheduler::Refusal::kDeadlineUnreachable && call.ahead > 0 &&
      tracing == Tracing::kNone)
    return refuse_late();
  if (!is_read || refused != scheduler::Refusal::kNone) {
    release(call);
    return tracing == Tracing::kDrawn ? Disposition::kLeftDrawn : Disposition::kLeft;
  }
  enter(call);
  route->decoding.count_unknown();
  if (tracing != Tracing::kNone) {
    call.trace = ++last_trace_;
    traced_calls_.push_back({call.trace, position, tracing == Tracing::kDrawn});
  }
  const auto* text = reinterpret_cast<const char*>(event.data);
  if (may_be_kept && random() <= kept_) call.message.assign(text, std::size_t(event.bytes));
  // Clients may write to shared memory once they have the answer.
  if (recording_.is_on() && route->decoding.shared_bytes == 0 &&
      recording_.chooses(message.bytes, header, random())) {
    call.recorded.assign(text, std::size_t(event.bytes));
    call.recorded_form = form == kStream ? kInfer : form;
  }
  taken(*route);
  return Disposition::kQueued;
}

Form Calls::form_of(Sender sender, const transport::Event& event) const {
  const std::vector<std::int32_t>& forms = sources_[sender].forms;
  const auto method = std::size_t(event.method);
  return method < forms.size() ? Form(forms[method]) : kNoForm;
}

// The end of a call or stream: what waits leaves the queue, and what runs is not answered.
Calls::Disposition Calls::take_end(Sender sender, const transport::Event& event) {
  if (form_of(sender, event) == kStream) {
    for (Call& call : calls_)
      if (call.route != nullptr && call.number == event.call && call.form == kStream) give_up(call);
    return Disposition::kEnded;
  }
  Call* call = find_call(event.call, sender);
  if (call == nullptr) return Disposition::kLeft;
  give_up(*call);
  return Disposition::kEnded;
}

TakenRoute& Calls::taken(Route& route) {
  for (TakenRoute& counts : taken_)
    if (counts.route == &route) return counts;
  taken_.push_back({&route, 0, 0.0});
  return taken_.back();
}

Calls::Tracing Calls::tracing_of(const transport::Event& event) {
  if (!traces_ || event.headers == nullptr) return Tracing::kNone;
  const std::string_view pairs(event.headers, std::size_t(event.header_bytes));
  if (transport::has_header(pairs, "traceparent")) return Tracing::kByClient;
  return traced_ != 0 && random() <= traced_ ? Tracing::kDrawn : Tracing::kNone;
}

Calls::Chosen Calls::choose_route(std::uint64_t chance, const Message& message) {
  key_.assign(message.model);
  key_ += '\0';
  key_.append(message.version);
  const auto found = names_.find(key_);
  if (found == names_.end()) return {};
  const NameTarget& target = found->second;
  if (target.shares.empty()) return {target.route, nullptr};
  std::uint64_t position;
  if (!position_of(message.bytes, message.header.header, target.seed, position))
    position = mixed(chance_seed_ ^ chance);
  const Share& share = choose(target.shares, position);
  return {share.route, &share.label};
}

bool Calls::decode(const Message& message, Route& route, Call& call) {
  Request& decoding = route.decoding;
  decoding.regions = &regions_;
  if (!read_inputs(message, tensors_, decoding, call)) return false;
  const Model& model = route.model();
  if (route.refuses_non_finite && !is_finite(call, model)) return false;
  call.request.size_bytes += decoding.shared_bytes;
  call.reports_unknown = message.header.header.reports_unknown != 0;
  if (call.reports_unknown) call.unknown.assign(decoding.unknown, decoding.unknown + model.mapped);
  call.request.samples = work_units(model, call.layout, call.own.data(), call.words.get());
  call.decoded = monotonic();
  return true;
}

bool Calls::is_reachable(const scheduler::Request& request, const Route& route) {
  if (request.deadline == scheduler::kForever) return true;
  const std::lock_guard<std::mutex> lock(scheduler_.mutex());
  const scheduler::Batcher& batcher = scheduler_.batcher();
  return batcher.counters().requests == 0 ||
         !batcher.deadline_unreachable(route.queue->queue, request.deadline, request.priority,
                                       request.arrived);
}

// xorshift64*: which calls are traced or kept is no secret.
std::uint64_t Calls::random() {
  random_ ^= random_ >> 12;
  random_ ^= random_ << 25;
  random_ ^= random_ >> 27;
  return random_ * 0x2545f4914f6cdd1du;
}

}  // namespace sharded_infer::call
