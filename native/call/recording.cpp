// See recording.h.
#include "recording.h"

#include <algorithm>

#include "choice.h"
#include "features.h"
#define XXH_INLINE_ALL
#include "third_party/xxhash.h"

namespace sharded_infer::call {
namespace {

constexpr std::uint64_t kSeed = 0x7265636f7264u;  // of the hash that chooses
constexpr std::int64_t kMostReadBytes = 4 << 20;  // of messages whose inputs are in memory at once

// Decodes a message by the model of the request; its inputs go to `call`.
bool read_again(const RecordedCall& recorded, Request& request, JsonTensors& tensors, Call& call) {
  Message message;
  message.form = recorded.form;
  message.bytes = {reinterpret_cast<const std::uint8_t*>(recorded.message.data()),
                   std::int64_t(recorded.message.size())};
  message.json_bytes = recorded.json_bytes;
  if (message.form == kJson && message.json_bytes == 0) {
    clear(message.header);
    if (!tensors.read(message.bytes, message.header)) return false;
  }
  return read_inputs(message, tensors, request, call);
}

void clear(RecordedBatch& batch) {
  for (auto* numbers : {&batch.samples, &batch.id_ends, &batch.bag_ends, &batch.lengths,
                        &batch.value_ends, &batch.values, &batch.dense_ends, &batch.score_ends})
    numbers->clear();
  for (auto* floats : {&batch.weights, &batch.dense, &batch.scores}) floats->clear();
  batch.codes.clear();
  batch.seconds.clear();
  batch.ids.clear();
}

template <class To, class From>
void append(std::vector<To>& to, const From* from, std::int64_t count) {
  to.insert(to.end(), from, from + count);
}

void add_sparse(const std::vector<Call*>& calls, RecordedBatch& batch) {
  const bool weighted = std::any_of(calls.begin(), calls.end(), [](const Call* call) {
    return call->layout.groups[0].weighted || call->layout.groups[1].weighted;
  });
  each_feature(calls, [&](std::size_t, const Call&, const Source& source, std::int64_t bags,
                          std::int64_t ids) {
    append(batch.lengths, source.lengths, bags);
    append(batch.values, source.values, ids);
    if (weighted && source.weights != nullptr) append(batch.weights, source.weights, ids);
    if (weighted) batch.weights.resize(batch.values.size(), 1.0f);
    batch.bag_ends.push_back(std::int64_t(batch.lengths.size()));
    batch.value_ends.push_back(std::int64_t(batch.values.size()));
  });
}

void add_rest(const std::vector<Call*>& calls, const std::vector<const RecordedCall*>& recorded,
              const Model& model, RecordedBatch& batch) {
  for (std::int64_t dense = 0; dense < model.dense; ++dense) {
    for (const Call* call : calls) {
      append(batch.dense, call->dense(dense),
             call->dense_rows[std::size_t(dense)] * model.widths[dense]);
      batch.dense_ends.push_back(std::int64_t(batch.dense.size()));
    }
  }
  std::vector<const float*> scores;
  for (const RecordedCall* call : recorded) {
    batch.samples.push_back(call->samples);
    batch.codes.push_back(call->code);
    append(batch.seconds, call->seconds, 5);
    batch.ids += call->id;
    batch.id_ends.push_back(std::int64_t(batch.ids.size()));
    scores.push_back(call->scores.data());
  }
  for (std::size_t output = 0; output < recorded[0]->route->outputs.size(); ++output) {
    for (std::size_t at = 0; at < recorded.size(); ++at) {
      const std::vector<std::int64_t>& counts = recorded[at]->score_counts;
      const std::int64_t count = counts.empty() ? 0 : counts[output];
      append(batch.scores, scores[at], count);
      scores[at] += count;
      batch.score_ends.push_back(std::int64_t(batch.scores.size()));
    }
  }
}

}  // namespace

void read(RecordedBatch& batch, Request& request, RecordedCalls& recorded) {
  clear(batch);
  recorded = RecordedCalls();
  std::deque<Call> inputs;
  std::vector<Call*> calls;
  std::vector<const RecordedCall*> read;
  JsonTensors tensors;
  std::int64_t bytes = 0;
  const Route* const route = batch.calls[batch.read].route;
  for (; batch.read < batch.calls.size() && bytes < kMostReadBytes; ++batch.read) {
    RecordedCall& call = batch.calls[batch.read];
    if (call.route != route) break;
    bytes += call.bytes();
    inputs.emplace_back();
    const bool is_read = read_again(call, request, tensors, inputs.back());
    std::string().swap(call.message);
    if (!is_read) {
      ++recorded.unread;
      continue;
    }
    calls.push_back(&inputs.back());
    read.push_back(&call);
  }
  if (calls.empty()) return;
  add_sparse(calls, batch);
  add_rest(calls, read, *request.model, batch);
  recorded.calls = std::int64_t(calls.size());
  recorded.samples = batch.samples.data();
  recorded.codes = batch.codes.data();
  recorded.seconds = batch.seconds.data();
  recorded.ids = batch.ids.data();
  recorded.id_ends = batch.id_ends.data();
  recorded.bag_ends = batch.bag_ends.data();
  recorded.lengths = batch.lengths.data();
  recorded.value_ends = batch.value_ends.data();
  recorded.values = batch.values.data();
  recorded.weights = batch.weights.empty() ? nullptr : batch.weights.data();
  recorded.dense_ends = batch.dense_ends.data();
  recorded.dense = batch.dense.data();
  recorded.score_ends = batch.score_ends.data();
  recorded.scores = batch.scores.data();
}

bool Recording::chooses(Bytes message, const Header& header, std::uint64_t chance) const {
  std::uint64_t position = 0;
  if (position_of(message, header, kSeed, position)) return position <= bound_;
  return chooses(
      {reinterpret_cast<const char*>(message.data) + header.id.start, std::size_t(header.id.size)},
      chance);
}

bool Recording::chooses(std::string_view id, std::uint64_t chance) const {
  return (id.empty() ? chance : XXH3_64bits_withSeed(id.data(), id.size(), kSeed)) <= bound_;
}

void Recording::add(Call& call, std::int32_t code, const double (&seconds)[5], const Scores* scores,
                    std::int64_t first) {
  RecordedCall recorded{call.route,
                        call.recorded_form,
                        call.json_bytes,
                        call.samples(),
                        code,
                        {},
                        call.id,
                        std::move(call.recorded),
                        {},
                        {}};
  std::copy_n(seconds, 5, recorded.seconds);
  const std::size_t outputs = scores == nullptr ? 0 : call.route->outputs.size();
  for (std::size_t output = 0; output < outputs; ++output) {
    const std::int64_t columns = std::max<std::int64_t>(1, scores[output].columns);
    const float* from = scores[output].values + first * columns;
    recorded.scores.insert(recorded.scores.end(), from, from + call.samples() * columns);
    recorded.score_counts.push_back(call.samples() * columns);
  }
  if (bytes_ + recorded.bytes() > most_bytes_) {
    ++dropped_;
    return;
  }
  bytes_ += recorded.bytes();
  ++call.route->calls;
  waiting_.push_back(std::move(recorded));
}

std::unique_ptr<RecordedBatch> Recording::take() {
  if (waiting_.empty()) return nullptr;
  auto batch = std::make_unique<RecordedBatch>();
  batch->calls.swap(waiting_);
  bytes_ = 0;
  std::sort(batch->calls.begin(), batch->calls.end(), [](const auto& one, const auto& other) {
    return one.route != other.route ? one.route < other.route : one.seconds[0] < other.seconds[0];
  });
  return batch;
}

}  // namespace sharded_infer::call
