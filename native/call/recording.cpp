// See recording.h.
#include "recording.h"

#include <algorithm>

#include "choice.h"
#include "features.h"
#define XXH_INLINE_ALL
#include "third_party/xxhash.h"

namespace sharded_infer::call {
namespace {

constexpr std::uint64_t kSeed = 0x7265636f7264u;   // of the hash that chooses
constexpr std::int64_t kMostReadBytes = 16 << 20;  // of messages whose inputs are in memory at once

// Decodes a message by the model of the request; its inputs go to `call`.
bool read_again(const RecordedBatch& batch, const RecordedCall& recorded, Request& request,
                JsonTensors& tensors, Call& call) {
  Message message;
  message.form = recorded.form;
  message.bytes = {reinterpret_cast<const std::uint8_t*>(batch.text.data() + recorded.message),
                   std::int64_t(recorded.end - recorded.message)};
  message.json_bytes = recorded.json_bytes;
  if (message.form == kJson && message.json_bytes == 0) {
    clear(message.header);
    if (!tensors.read(message.bytes, message.header)) return false;
  }
  return read_inputs(message, tensors, request, call);
}

template <class Number>
void clear(std::vector<Column<Number>>& columns, std::size_t count) {
  columns.resize(count);
  for (Column<Number>& column : columns) {
    column.ends.clear();
    column.numbers.clear();
  }
}

void clear(RecordedBatch& batch, const Model& model, std::size_t outputs) {
  for (auto* numbers : {&batch.samples, &batch.ids_outside, &batch.ids.ends}) numbers->clear();
  for (auto* numbers : {&batch.codes, &batch.has_defaults}) numbers->clear();
  batch.seconds.clear();
  batch.ids.numbers.clear();
  batch.weighted = false;
  clear(batch.lengths, std::size_t(model.features));
  clear(batch.values, std::size_t(model.features));
  clear(batch.weights, std::size_t(model.features));
  clear(batch.dense, std::size_t(model.dense));
  clear(batch.scores, outputs);
}

// `inputs` are those of one call.
void add(RecordedBatch& batch, const std::vector<Call*>& inputs, const RecordedCall& call,
         const Model& model) {
  each_feature(inputs, [&](std::size_t feature, const Call&, const Source& source,
                           std::int64_t bags, std::int64_t ids) {
    batch.lengths[feature].add(source.lengths, bags);
    if (source.weights != nullptr) {
      batch.weighted = true;
      std::vector<float>& weights = batch.weights[feature].numbers;
      weights.resize(batch.values[feature].numbers.size(), 1.0f);
      weights.insert(weights.end(), source.weights, source.weights + ids);
    }
    batch.values[feature].add(source.values, ids);
  });
  for (std::int64_t dense = 0; dense < model.dense; ++dense)
    batch.dense[std::size_t(dense)].add(
        inputs[0]->dense(dense), inputs[0]->dense_rows[std::size_t(dense)] * model.widths[dense]);
  const float* scores = batch.score_values.data() + call.scores;
  for (std::size_t output = 0; output < batch.scores.size(); ++output) {
    const std::int64_t count =
        call.answer.code != 0 ? 0 : batch.score_counts[call.score_counts + output];
    batch.scores[output].add(scores, count);
    scores += count;
  }
  batch.samples.push_back(call.samples);
  batch.ids_outside.push_back(call.answer.ids_outside);
  batch.has_defaults.push_back(call.answer.has_defaults);
  batch.codes.push_back(call.answer.code);
  batch.seconds.insert(batch.seconds.end(), call.answer.seconds, call.answer.seconds + 5);
  batch.ids.add(batch.text.data() + call.id, std::int64_t(call.message - call.id));
}

template <class Number>
const RecordedLists* lists_of(const std::vector<Column<Number>>& columns,
                              std::vector<RecordedLists>& lists) {
  lists.clear();
  for (const Column<Number>& column : columns) lists.push_back(column.lists());
  return lists.data();
}

const RecordedLists* weights_of(RecordedBatch& batch, std::vector<RecordedLists>& lists) {
  if (!batch.weighted) return nullptr;
  lists.clear();
  for (std::size_t feature = 0; feature < batch.weights.size(); ++feature) {
    const Column<std::int64_t>& values = batch.values[feature];
    std::vector<float>& weights = batch.weights[feature].numbers;
    weights.resize(values.numbers.size(), 1.0f);
    lists.push_back({values.ends.data(), weights.data()});
  }
  return lists.data();
}

}  // namespace

void read(RecordedBatch& batch, Request& request, RecordedCalls& recorded) {
  const Route* const route = batch.calls[batch.read].route;
  clear(batch, *request.model, route->outputs.size());
  recorded = RecordedCalls();
  Call inputs;
  const std::vector<Call*> read_call{&inputs};
  JsonTensors tensors;
  std::int64_t bytes = 0;
  for (; batch.read < batch.calls.size() && bytes < kMostReadBytes; ++batch.read) {
    const RecordedCall& call = batch.calls[batch.read];
    if (call.route != route) break;
    bytes += std::int64_t(call.end - call.id);
    if (read_again(batch, call, request, tensors, inputs))
      add(batch, read_call, call, *request.model);
    else
      ++recorded.unread;
  }
  recorded.calls = std::int64_t(batch.samples.size());
  recorded.samples = batch.samples.data();
  recorded.ids_outside = batch.ids_outside.data();
  recorded.has_defaults = batch.has_defaults.data();
  recorded.codes = batch.codes.data();
  recorded.seconds = batch.seconds.data();
  recorded.ids = batch.ids.lists();
  recorded.lengths = lists_of(batch.lengths, batch.lists[0]);
  recorded.values = lists_of(batch.values, batch.lists[1]);
  recorded.weights = weights_of(batch, batch.lists[2]);
  recorded.dense = lists_of(batch.dense, batch.lists[3]);
  recorded.scores = lists_of(batch.scores, batch.lists[4]);
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

void Recording::add(Call& call, const RecordedAnswer& answer, const Scores* scores,
                    std::int64_t first) {
  if (waiting_ == nullptr) {
    waiting_ = spare_ == nullptr ? std::make_unique<RecordedBatch>() : std::move(spare_);
    // Pages that are not touched take no memory.
    waiting_->text.reserve(std::size_t(most_bytes_));
  }
  RecordedBatch& batch = *waiting_;
  const auto bytes = std::int64_t(call.id.size() + call.recorded.size());
  if (batch.waiting_bytes() + bytes > most_bytes_) {
    ++dropped_;
    return;
  }
  const std::size_t id = batch.text.size(), message = id + call.id.size();
  batch.text += call.id;
  batch.text += call.recorded;
  ++call.route->calls;
  batch.calls.push_back({call.route, call.recorded_form, call.json_bytes, call.samples(), answer,
                         id, message, batch.text.size(), batch.score_values.size(),
                         batch.score_counts.size()});
  const std::size_t outputs = scores == nullptr ? 0 : call.route->outputs.size();
  for (std::size_t output = 0; output < outputs; ++output) {
    const std::int64_t columns = std::max<std::int64_t>(1, scores[output].columns);
    const float* from = scores[output].values + first * columns;
    batch.score_values.insert(batch.score_values.end(), from, from + call.samples() * columns);
    batch.score_counts.push_back(call.samples() * columns);
  }
}

std::unique_ptr<RecordedBatch> Recording::take() {
  std::unique_ptr<RecordedBatch> batch = std::move(waiting_);
  if (batch == nullptr) {
    spare_.reset();
    return nullptr;
  }
  std::sort(batch->calls.begin(), batch->calls.end(), [](const auto& one, const auto& other) {
    return one.route != other.route ? one.route < other.route : one.id < other.id;
  });
  return batch;
}

void Recording::finish(std::unique_ptr<RecordedBatch> batch) {
  for (const RecordedCall& call : batch->calls) --call.route->calls;
  batch->calls.clear();
  batch->text.clear();
  batch->score_values.clear();
  batch->score_counts.clear();
  batch->read = 0;
  spare_ = std::move(batch);
}

}  // namespace sharded_infer::call
