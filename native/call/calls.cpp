// See calls.h.
#include "calls.h"

#include <algorithm>

#include "base/clock.h"
#include "transport/request_head.h"

namespace sharded_infer::calls {
namespace {

constexpr std::int32_t kDeadlineExceeded = 4;

bool all_finite(const std::int64_t* words, std::int64_t count) {
  // The sum of differences with themselves is 0 unless one is NaN or infinite; it vectorises.
  const auto* values = reinterpret_cast<const float*>(words);
  float sum = 0.0f;
  for (std::int64_t at = 0; at < count; ++at) sum += values[at] - values[at];
  return sum == 0.0f;
}

// The numbers of sequences, whose bits lie among the ids.
bool numbers_are_finite(const HeldCall& call, const Model& model) {
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

}  // namespace

void Calls::set_names(const Name* names, std::int64_t count, const NamedShare* shares,
                      std::int64_t share_count) {
  meanings_.clear();
  for (std::int64_t at = 0; at < count; ++at)
    meanings_[std::string(names[at].model) + '\0' + names[at].version].route = names[at].route;
  for (std::int64_t at = 0; at < share_count; ++at) {
    const NamedShare& share = shares[at];
    Meaning& meaning = meanings_[std::string(share.model) + '\0'];
    meaning.seed = share.seed;
    meaning.shares.push_back({share.label, share.hash, share.weight, share.route});
  }
}

std::int64_t Calls::take(const transport::Event* events, std::int64_t count, std::int64_t* left,
                         Taken& taken) {
  taken.calls = taken.ended = taken.routes = 0;
  std::int64_t others = 0;
  for (std::int64_t at = 0; at < count; ++at) {
    const bool comes = events[at].kind == transport::kCall;
    const Way way = comes ? take(events[at], taken) : remove(events[at], taken);
    if (way != Way::kTaken) left[others++] = way == Way::kTraced ? -1 - at : at;
  }
  return others;
}

Calls::Way Calls::take(const transport::Event& event, Taken& taken) {
  const std::int32_t form = forms_[std::size_t(event.method)];
  if (form == kNotTaken || event.encoding != transport::kIdentity) return Way::kLeft;
  const double arrived = monotonic();
  const Bytes message{event.data, event.bytes};
  Header header;
  if (!(form == kInfer ? read_header(message, header) : read_predict_header(message, header)))
    return Way::kLeft;
  const auto [route, label] = find(event, message, header);
  std::uint64_t outputs = 0;
  if (route == nullptr || !read_outputs(message, header, *route, outputs)) return Way::kLeft;
  if (event.headers != nullptr) {
    // The client decides, or chance.
    const std::string_view pairs(event.headers, std::size_t(event.header_bytes));
    if (transport::has_header(pairs, "traceparent")) return Way::kLeft;
    if (traced_ != 0 && random() <= traced_) return Way::kTraced;
  }
  Ended* ended = taken.of(*route);
  if (ended == nullptr) return Way::kLeft;
  HeldCall& call = acquire(*route);
  scheduler::Request& request = call.request;
  request.queue = &route->queue->queue;
  request.size_bytes = event.bytes;
  request.arrived = arrived;
  request.deadline = arrived + event.seconds_left;
  if (header.timeout_us != 0)
    request.deadline = std::min(request.deadline, arrived + double(header.timeout_us) / 1e6);
  request.priority = scheduler::effective_priority(header.priority);
  call.call = event.call;
  call.form = Form(form);
  call.outputs = outputs;
  call.ahead = scheduler_.batcher().counters().requests;
  const auto* id = reinterpret_cast<const char*>(message.data) + header.id.start;
  call.id.assign(id, std::size_t(header.id.size));
  if (label != nullptr) call.label = *label;
  // Under overload most calls are refused, so one that must be refused is not decoded.
  if (!is_reachable(request, *route)) {
    finish(call, kDeadlineExceeded, transport::kTooLate);
    ++ended->late;
    ++taken.ended;
    ended->late_seconds += monotonic() - arrived;
    give_back(call);
    return Way::kTaken;
  }
  if (!decode(message, Form(form), *route, call) || !queue(call)) {
    give_back(call);
    return Way::kLeft;
  }
  route->decoding.count_unknown();
  if (kept_ != 0 && header.version.size == 0 && random() <= kept_)
    call.message.assign(reinterpret_cast<const char*>(message.data), std::size_t(message.size));
  ++taken.calls;
  const auto slot = std::uint32_t(event.call);
  if (by_slot_.size() <= slot) by_slot_.resize(slot + std::size_t{1});
  by_slot_[slot] = request.handle;
  return Way::kTaken;
}

// The end of a call: one that waits leaves the queue, and one that runs is answered to nobody.
Calls::Way Calls::remove(const transport::Event& event, Taken& taken) {
  HeldCall* call = event.kind == transport::kCancelled ? find_call(event.call) : nullptr;
  Ended* ended = call == nullptr ? nullptr : taken.of(*call->route);
  if (ended == nullptr) return Way::kLeft;
  const std::int64_t handle = cancel(event.call);
  if (handle == 0) return Way::kTaken;
  ++ended->cancelled;
  ++taken.ended;
  ended->cancelled_seconds += monotonic() - call->request.arrived;
  release(&handle, 1);
  return Way::kTaken;
}

Calls::Chosen Calls::find(const transport::Event& event, Bytes message, const Header& header) {
  const auto* text = reinterpret_cast<const char*>(message.data);
  key_.assign(text + header.name.start, std::size_t(header.name.size));
  key_ += '\0';
  key_.append(text + header.version.start, std::size_t(header.version.size));
  const auto found = meanings_.find(key_);
  if (found == meanings_.end()) return {};
  const Meaning& meaning = found->second;
  if (meaning.shares.empty()) return {meaning.route, nullptr};
  std::uint64_t position;
  if (!position_of(message, header, meaning.seed, position))
    position = mixed(chance_seed_ ^ event.call);
  const Share& share = choose(meaning.shares, position);
  return {share.route, &share.label};
}

bool Calls::read_outputs(Bytes message, const Header& header, const Route& route,
                         std::uint64_t& wanted) {
  if (header.output_count == 0) wanted = ~std::uint64_t{0};
  for (std::int64_t at = 0; at < header.output_count; ++at) {
    const Text& text = header.outputs[at];
    const int found = route.output_of({message.data + text.start, text.size});
    if (found < 0) return false;
    wanted |= std::uint64_t{1} << found;
  }
  return true;
}

bool Calls::decode(Bytes message, Form form, Route& route, HeldCall& call) {
  Request& decoding = route.decoding;
  if (!(form == kInfer ? decoding.scan(message) : decoding.scan_predict(message))) return false;
  call.reserve(decoding.layout.words);
  if (!decoding.fill(call.words.get())) return false;
  const Model& model = route.model();
  call.layout = decoding.layout;
  call.own.assign(decoding.own, decoding.own + model.features);
  call.dense_at.assign(decoding.dense_at, decoding.dense_at + model.dense);
  call.dense_rows.assign(decoding.dense_rows, decoding.dense_rows + model.dense);
  // What is not finite may be refused.
  for (const Group& group : call.layout.groups)
    if (group.weighted && !all_finite(call.words.get() + group.weights_at, group.ids)) return false;
  if (model.has_numbers && !numbers_are_finite(call, model)) return false;
  for (std::int64_t dense = 0; dense < model.dense; ++dense) {
    const std::int64_t* at = call.words.get() + call.dense_at[std::size_t(dense)];
    if (!all_finite(at, call.dense_rows[std::size_t(dense)] * model.widths[dense])) return false;
  }
  call.request.samples = call.layout.batch;
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

bool Calls::queue(HeldCall& call) {
  const std::lock_guard<std::mutex> lock(scheduler_.mutex());
  return scheduler_.batcher().offer(call.request, call.decoded).why == scheduler::Refusal::kNone;
}

HeldCall* Calls::find_call(std::uint64_t number) {
  const auto slot = std::uint32_t(number);
  if (slot >= by_slot_.size() || by_slot_[slot] == 0) return nullptr;
  HeldCall& call = held(by_slot_[slot]);
  return call.call == number ? &call : nullptr;
}

std::int64_t Calls::cancel(std::uint64_t number) {
  HeldCall* call = find_call(number);
  if (call == nullptr) return 0;
  const std::lock_guard<std::mutex> lock(scheduler_.mutex());
  return scheduler_.batcher().cancel(call->request) ? call->request.handle : 0;
}

std::vector<HeldCall*> Calls::all_held(const std::int64_t* handles, std::int64_t count) {
  std::vector<HeldCall*> calls;
  calls.reserve(std::size_t(count));
  for (std::int64_t at = 0; at < count; ++at) calls.push_back(&held(handles[at]));
  return calls;
}

bool Calls::lay_out(const std::int64_t* handles, std::int64_t count, Layout& merged,
                    std::int64_t* dense_at) {
  return lay_out_merge(all_held(handles, count).data(), count, merged, dense_at);
}

double Calls::deadline(const std::int64_t* handles, std::int64_t count) {
  double earliest = scheduler::kForever;
  for (std::int64_t at = 0; at < count; ++at)
    earliest = std::min(earliest, held(handles[at]).request.deadline);
  return earliest;
}

void Calls::merge_laid_out(const std::int64_t* handles, std::int64_t count, const Layout& merged,
                           const std::int64_t* dense_at, std::int64_t* words, std::int64_t* sizes) {
  merge(all_held(handles, count).data(), count, merged, dense_at, words, sizes);
}

Answered Calls::answer(const std::int64_t* handles, std::int64_t count, const Scores* scores,
                       const Run& run, Answers& answers, AnsweredRequest* counted) {
  Answered all;
  answers.ends.reserve(std::size_t(count));
  std::int64_t first = 0;
  double before = monotonic();
  for (std::int64_t at = 0; at < count; ++at) {
    const HeldCall& call = held(handles[at]);
    const std::int64_t samples = call.layout.batch;
    const double decode = call.decoded - call.request.arrived;
    const double queued = std::max(0.0, run.started - call.decoded);
    const float seconds[4] = {float(decode), float(queued), float(run.lookup_seconds),
                              float(run.tower_seconds)};
    if (call.form == kInfer)
      answers.writer.infer(call, scores, first, samples);
    else
      answers.writer.predict(call, scores, first, samples, seconds);
    answers.ends.push_back(answers.writer.messages().size());
    first += samples;
    const double now = monotonic(), whole = now - call.request.arrived;
    counted[at] = {double(samples),
                   {decode, queued, run.lookup_seconds, run.tower_seconds, now - before, whole},
                   double(call.layout.ids_outside)};
    all.decode_seconds += decode;
    all.encode_seconds += now - before;
    all.slowest_seconds = std::max(all.slowest_seconds, whole);
    before = now;
  }
  return all;
}

void Calls::send(const std::int64_t* handles, const Answers& answers) {
  const std::uint8_t* messages = answers.writer.messages().data();
  std::size_t begin = 0;
  for (std::size_t at = 0; at < answers.ends.size(); ++at) {
    const std::size_t end = answers.ends[at];
    respond_(server_, held(handles[at]).call, messages + begin, std::int64_t(end - begin), 1);
    begin = end;
  }
}

double Calls::refuse(const std::int64_t* handles, std::int64_t count, std::int32_t code,
                     std::string_view words) {
  const double now = monotonic();
  double seconds = 0.0;
  for (std::int64_t at = 0; at < count; ++at) {
    const HeldCall& call = held(handles[at]);
    finish(call, code, words);
    seconds += now - call.request.arrived;
  }
  release(handles, count);
  return seconds;
}

void Calls::describe(std::int64_t handle, Description& description) {
  const HeldCall& call = held(handle);
  const scheduler::Request& request = call.request;
  description = {call.route,
                 call.call,
                 call.form,
                 request.samples,
                 request.size_bytes,
                 request.priority,
                 call.ahead,
                 request.arrived,
                 request.deadline,
                 call.decoded,
                 call.outputs,
                 call.id.data(),
                 std::int64_t(call.id.size()),
                 call.words.get(),
                 call.own.data(),
                 call.dense_at.data(),
                 call.dense_rows.data(),
                 call.label.c_str(),
                 call.message.data(),
                 std::int64_t(call.message.size()),
                 call.layout};
}

std::int64_t Calls::kept(const std::int64_t* handles, std::int64_t count, Kept* found) {
  std::int64_t first = 0, kept = 0;
  for (std::int64_t at = 0; at < count; ++at) {
    const HeldCall& call = held(handles[at]);
    if (!call.message.empty())
      found[kept++] = {call.form, first, call.layout.batch, call.message.data(),
                       std::int64_t(call.message.size())};
    first += call.layout.batch;
  }
  return kept;
}

void Calls::release(const std::int64_t* handles, std::int64_t count) {
  for (std::int64_t at = 0; at < count; ++at) {
    HeldCall& call = held(handles[at]);
    // The place may be a later call's: the client of this one has gone.
    std::int64_t& known = by_slot_[std::uint32_t(call.call)];
    if (known == handles[at]) known = 0;
    give_back(call);
  }
}

HeldCall& Calls::acquire(Route& route) {
  if (free_.empty()) {
    free_.push_back(kFirstHandle - std::int64_t(held_.size()));
    held_.emplace_back();
  }
  HeldCall& call = held(free_.back());
  call.request = scheduler::Request();
  call.request.handle = free_.back();
  free_.pop_back();
  call.route = &route;
  ++route.held;
  return call;
}

void Calls::give_back(HeldCall& call) {
  call.clear();
  free_.push_back(call.request.handle);
}

// xorshift64*: which calls are traced or kept is no secret.
std::uint64_t Calls::random() {
  random_ ^= random_ >> 12;
  random_ ^= random_ << 25;
  random_ ^= random_ >> 27;
  return random_ * 0x2545f4914f6cdd1du;
}

}  // namespace sharded_infer::calls
