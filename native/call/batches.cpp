// See calls.h: batches, from the scheduler's decision to the answers.
#include <algorithm>

#include "base/clock.h"
#include "base/counting.h"
#include "calls.h"

namespace sharded_infer::call {
namespace {

double thread_seconds() { return clock_seconds(CLOCK_THREAD_CPUTIME_ID); }

std::int64_t sum(const std::int64_t* numbers, std::int64_t count) {
  std::int64_t total = 0;
  for (std::int64_t at = 0; at < count; ++at) total += numbers[at];
  return total;
}

}  // namespace

Batch* Calls::batch_of(std::vector<Call*> calls, scheduler::State state) {
  auto* batch = new Batch;
  batch->calls = std::move(calls);
  batch->info.route = batch->calls[0]->route;
  batch->info.state = state;
  describe(*batch);
  return batch;
}

void Calls::describe(Batch& batch) {
  BatchInfo& info = batch.info;
  info.calls = std::int64_t(batch.calls.size());
  info.samples = info.traced = info.kept = info.placed = 0;
  info.deadline = scheduler::kForever;
  for (const Call* call : batch.calls) {
    info.samples += call->samples();
    info.deadline = std::min(info.deadline, call->request.deadline);
    info.traced += call->trace != 0;
    info.kept += !call->message.empty();
    info.placed += !call->placed.empty();
  }
}

Batch* Calls::dropped_batches(const std::vector<scheduler::Request*>& requests) {
  Batch* first = nullptr;
  std::vector<Batch*> batches;
  for (const scheduler::Request* request : requests) {
    Call& call = call_of(request->handle);
    const auto same = [&](const Batch* batch) {
      return batch->info.route == call.route && batch->info.state == call.request.state;
    };
    const auto known = std::find_if(batches.begin(), batches.end(), same);
    if (known != batches.end()) {
      (*known)->calls.push_back(&call);
      continue;
    }
    Batch* batch = batch_of({&call}, call.request.state);
    batch->info.next = first;
    first = batch;
    batches.push_back(batch);
  }
  for (Batch* batch : batches) describe(*batch);
  return first;
}

void Calls::begin(double now, Begun& begun) {
  begun = Begun();
  {
    const std::lock_guard<std::mutex> lock(scheduler_.mutex());
    scheduler_.batcher().take(now, decided_);
    begun.more = decided_.batch != 0 && scheduler_.batcher().next_request(now) != nullptr;
  }
  begun.dropped = dropped_batches(decided_.dropped);
  if (decided_.batch == 0) return;
  std::vector<Call*> calls;
  calls.reserve(decided_.requests.size());
  for (const scheduler::Request* request : decided_.requests)
    calls.push_back(&call_of(request->handle));
  Batch* batch = batch_of(std::move(calls), scheduler::State::kRunning);
  batch->queue = batch->calls[0]->request.queue;
  batch->number = decided_.batch;
  batch->info.work = decided_.samples;
  batch->info.predicted = decided_.predicted;
  run(*batch, now);
  // Finished answers do not wait for a batch.
  const Source& grpc = sources_[kGrpc];
  if (grpc.flush != nullptr) grpc.flush(grpc.server);
  begun.batch = batch;
}

void Calls::run(Batch& batch, double now) {
  merge(batch.calls, batch.input);
  BatchInfo& info = batch.info;
  MergedInput& input = batch.input;
  info.started = now;
  info.input = {input.layout, input.own.data(), input.dense_at.data(), input.dense_rows.data(),
                nullptr};
  info.words = input.words;
  info.sizes = input.sizes.data();
  batch.failed.assign(batch.calls.size(), 0);
  batch.cpu_started = thread_seconds();
}

Batch* Calls::occupy(scheduler::Queue& queue, double now) {
  const std::lock_guard<std::mutex> lock(scheduler_.mutex());
  const std::int64_t number = scheduler_.batcher().occupy(queue.costs().predicted(1), now);
  if (number == 0) return nullptr;
  auto* batch = new Batch;
  batch->queue = &queue;
  batch->number = number;
  batch->info.work = 1;
  batch->info.started = now;
  batch->cpu_started = thread_seconds();
  return batch;
}

Batch* Calls::expire(double now) {
  {
    const std::lock_guard<std::mutex> lock(scheduler_.mutex());
    scheduler_.batcher().expire(now, late_);
  }
  return dropped_batches(late_);
}

// Cancels a waiting call.
void Calls::give_up(Call& call) {
  const std::lock_guard<std::mutex> lock(scheduler_.mutex());
  if (scheduler_.batcher().cancel(call.request)) cancelled_.push_back(&call.request);
}

Batch* Calls::part(Batch& batch, const std::int64_t* positions, std::int64_t count) {
  std::vector<Call*> calls;
  for (std::int64_t at = 0; at < count; ++at) {
    Call*& call = batch.calls[std::size_t(positions[at])];
    calls.push_back(call);
    call = nullptr;
  }
  batch.calls.erase(std::remove(batch.calls.begin(), batch.calls.end(), nullptr),
                    batch.calls.end());
  Batch* moved = batch_of(std::move(calls), scheduler::State::kRunning);
  for (const Call* call : moved->calls) moved->info.work += call->request.samples;
  run(*moved, batch.info.started);
  describe(batch);
  return moved;
}

void Calls::collect(const Batch& batch, const BatchScores& scores, const Call& call,
                    std::int64_t first, CallScores& answer, AnsweredRequest& counted) {
  const double decode = call.decoded - call.request.arrived;
  const double queued = std::max(0.0, batch.info.started - call.decoded);
  answer.first = first;
  answer.seconds[0] = float(decode);
  answer.seconds[1] = float(queued);
  answer.default_tables.clear();
  answer.unknown_ids.clear();
  counted = {double(call.samples()),
             {decode, queued, scores.lookup_seconds, scores.tower_seconds, 0.0, 0.0},
             double(call.layout.ids_outside)};
  for (std::int64_t at = 0; at < scores.default_count; ++at)
    if (sum(scores.defaults[at].samples + first, call.samples()) != 0)
      answer.default_tables.push_back(scores.defaults[at].table);
  for (std::int64_t at = 0; at < scores.unknown_count; ++at) {
    const std::int64_t ids = sum(scores.unknown[at].samples + first, call.samples());
    counted.ids_outside += double(ids);
    if (ids != 0) answer.unknown_ids.emplace_back(scores.unknown[at].table, ids);
  }
  if (!call.reports_unknown) return answer.unknown_ids.clear();
  for (std::size_t at = 0; at < call.unknown.size(); ++at)
    if (call.unknown[at] != 0)
      answer.unknown_ids.emplace_back(call.route->mapped_tables[at].c_str(), call.unknown[at]);
  std::sort(answer.unknown_ids.begin(), answer.unknown_ids.end(),
            [](const auto& one, const auto& other) {
              return std::string_view(one.first) < std::string_view(other.first);
            });
}

void Calls::count_bags(const Batch& batch, const BatchScores& scores) {
  const std::int64_t* cells = scores.counted->empty_bags;
  if (cells == nullptr) return;
  const MergedInput& input = batch.input;
  const std::int64_t* samples = batch.calls.size() == 1 ? &input.layout.batch : input.sizes.data();
  for (const bool is_own : {true, false}) {
    const Group& group = input.layout.groups[is_own ? 0 : 1];
    const std::int64_t* lengths = input.words + group.lengths_at;
    for (std::size_t feature = 0; feature < input.own.size(); ++feature) {
      if ((input.own[feature] != 0) != is_own) continue;
      if (cells[feature] >= 0)
        count_empty_bags(scores.cells + cells[feature], lengths, group.bags,
                         is_own ? nullptr : samples);
      lengths += group.bags;
    }
  }
}

void Calls::finish(Batch& batch, const BatchScores& scores, Finished& finished) {
  finished = Finished();
  CallScores answer;
  answer.outputs = scores.scores;
  answer.seconds[2] = float(scores.lookup_seconds);
  answer.seconds[3] = float(scores.tower_seconds);
  batch.counted.resize(batch.calls.size());
  batch.json_bytes.assign(batch.calls.size(), 0);
  std::int64_t first = 0;
  double before = monotonic();
  for (std::size_t at = 0; at < batch.calls.size(); ++at) {
    const Call& call = *batch.calls[at];
    AnsweredRequest& counted = batch.counted[at];
    collect(batch, scores, call, first, answer, counted);
    batch.failed[at] = !place(call, scores, first);
    if (batch.failed[at]) batch.failed_at.push_back(std::int64_t(at));
    if (!batch.failed[at]) batch.json_bytes[at] = batch.writer.write(call, answer);
    batch.ends.push_back(batch.writer.bytes().size());
    first += call.samples();
    const double now = monotonic();
    counted.seconds[4] = now - before;
    counted.seconds[5] = now - call.request.arrived;
    before = now;
    if (batch.failed[at]) continue;
    if (!call.recorded.empty()) {
      const RecordedAnswer recorded{0,
                                    answer.default_tables.empty() ? 0 : 1,
                                    {scores.now, counted.seconds[0], counted.seconds[1],
                                     counted.seconds[2], counted.seconds[3]},
                                    std::int64_t(counted.ids_outside)};
      recording_.add(*batch.calls[at], recorded, scores.scores, first - call.samples());
    }
    finished.decode_seconds += counted.seconds[0];
    finished.encode_seconds += counted.seconds[4];
    finished.slowest_seconds = std::max(finished.slowest_seconds, counted.seconds[5]);
    finished.samples += call.samples();
    count_answered(scores.cells, *scores.counted, &counted, 1, scores.now);
  }
  count_bags(batch, scores);
  const std::uint8_t* bytes = batch.writer.bytes().data();
  std::size_t begin = 0;
  for (std::size_t at = 0; at < batch.calls.size(); ++at) {
    const Call& call = *batch.calls[at];
    const auto size = std::int64_t(batch.ends[at] - begin);
    if (!batch.failed[at] && call.compresses(size))
      batch.answers.push_back(
          {call.number, bytes + begin, size, batch.json_bytes[at], call.encoding});
    begin = batch.ends[at];
  }
  finished.counted = batch.counted.data();
  finished.answers = batch.answers.data();
  finished.answer_count = std::int64_t(batch.answers.size());
  finished.failed = batch.failed_at.data();
  finished.failed_count = std::int64_t(batch.failed_at.size());
}

// Writes the outputs that go to shared memory, before the answer that says so. False where one
// cannot be written.
bool Calls::place(const Call& call, const BatchScores& scores, std::int64_t first) const {
  for (const PlacedOutput& placed : call.placed) {
    const Bytes region{static_cast<const std::uint8_t*>(placed.region), placed.region_bytes};
    const std::string_view data = bytes_of(scores.scores[placed.output], first, call.samples());
    if (!regions_.write(
            {region, placed.offset, placed.byte_size},
            {reinterpret_cast<const std::uint8_t*>(data.data()), std::int64_t(data.size())}))
      return false;
  }
  return true;
}

double Calls::fail(Batch& batch, std::int32_t code, std::string_view words) {
  // Nothing that `finish` may have written is sent.
  batch.ends.clear();
  const double now = monotonic();
  double seconds = 0.0;
  for (Call* call : batch.calls) {
    seconds += now - call->request.arrived;
    if (!call->recorded.empty()) {
      const RecordedAnswer own{
          code,
          0,
          {clock_seconds(CLOCK_REALTIME), call->decoded - call->request.arrived, 0.0, 0.0, 0.0},
          call->layout.ids_outside};
      recording_.add(*call, own, nullptr, 0);
    }
    // Clients of cancelled calls have gone.
    if (batch.info.state != scheduler::State::kCancelled) fail_call(*call, code, words);
  }
  return seconds;
}

void Calls::refuse(Batch& batch, std::int64_t position, std::int32_t code, std::string_view words) {
  fail_call(*batch.calls[std::size_t(position)], code, words);
}

void Calls::fail_call(const Call& call, std::int32_t code, std::string_view words) {
  const Source& source = sources_[call.sender];
  if (call.form == kStream) {
    AnswerWriter writer;
    writer.stream_error(call, words);
    const std::vector<std::uint8_t>& bytes = writer.bytes();
    return source.refuse_message(source.server, call.number, bytes.data(),
                                 std::int64_t(bytes.size()), code, words.data(),
                                 std::int64_t(words.size()));
  }
  source.finish(source.server, call.number, code, words.data(), std::int64_t(words.size()), nullptr,
                0);
}

bool Calls::send(const Batch& batch) {
  bool waits = false;
  const std::uint8_t* bytes = batch.writer.bytes().data();
  std::size_t begin = 0;
  for (std::size_t at = 0; at < batch.ends.size(); ++at) {
    const Call& call = *batch.calls[at];
    const auto size = std::int64_t(batch.ends[at] - begin);
    const Source& source = sources_[call.sender];
    if (!batch.failed[at] && call.sender == kHttp && !call.compresses(size)) {
      const std::string lines = http_lines(batch.json_bytes[at], size);
      waits = source.respond_http(source.server, call.number, lines.data(),
                                  std::int64_t(lines.size()), bytes + begin, size);
    } else if (!batch.failed[at] && call.sender == kGrpc) {
      source.respond(source.server, call.number, bytes + begin, size, call.form != kStream);
    }
    begin = batch.ends[at];
  }
  return waits;
}

void Calls::end(Batch& batch, double now, bool by_clock, BatchEnd& end) {
  end = {0.0, send(batch)};
  {
    const std::lock_guard<std::mutex> lock(scheduler_.mutex());
    if (batch.number != 0) {
      const double seconds = now - batch.info.started;
      const double burnt = by_clock ? seconds : thread_seconds() - batch.cpu_started;
      scheduler_.batcher().finish(batch.number, *batch.queue, batch.info.work, seconds, now, burnt);
    }
    end.backlog = scheduler_.batcher().backlog(now);
  }
  for (Call* call : batch.calls) release(*call);
  delete &batch;
}

}  // namespace sharded_infer::call
