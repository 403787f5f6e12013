// Request::fill, see request.h: tensors to the arrays of a batch.
#include "base/counting.h"
#include "base/ids.h"
#include "request.h"
#include "base/strings.h"

#include <algorithm>

namespace sharded_infer {
namespace {

// Where a group is written to next.
struct Target {
  std::int64_t* lengths;
  std::int64_t* values;
  std::uint8_t* weights;  // fp32; null without
  std::int64_t bags;
};

// One feature's ids: a part of a tensor, and of its weights' tensor if there is one.
struct Source {
  const Tensor* values;
  const Tensor* weights;
  std::int64_t first;
  std::int64_t count;
  std::int64_t
      row;  // of padded ids: those of each bag, the first `count` of all are its own; else 0
};

constexpr std::int64_t kFp32Bytes = 4;

// Calls `part` with where each run of ids begins in the tensor and among those that count, and with
// how many it has; whether all calls returned true.
template <class Part>
bool for_runs(const Source& source, const Target& target, Part part) {
  if (source.row == 0) return part(source.first, std::int64_t{0}, source.count);
  bool all = true;
  std::int64_t to = 0;
  for (std::int64_t bag = 0; bag < target.bags; ++bag) {
    all &= part(bag * source.row, to, target.lengths[bag]);
    to += target.lengths[bag];
  }
  return all;
}

// As `copy_numbers`.
bool copy_ids(const Source& source, const Target& target, std::int64_t limit) {
  return for_runs(source, target, [&](std::int64_t first, std::int64_t to, std::int64_t count) {
    return copy_numbers(*source.values, first, count, limit, target.values + to);
  });
}

bool is_outside(std::int64_t id, std::int64_t rows) { return id < 0 || id >= rows; }

// Python's modulo of a positive divisor: never negative.
std::int64_t remainder_of(std::int64_t number, std::int64_t divisor) {
  const std::int64_t rest = number % divisor;
  return rest < 0 ? rest + divisor : rest;
}

template <class Step>
void for_ids(std::int64_t* ids, std::int64_t count, Step step) {
  for (std::int64_t i = 0; i < count; ++i) ids[i] = step(ids[i]);
}

// One step of `count` ids. Unsigned arithmetic wraps around.
void step_ids(std::int32_t operation, std::int64_t number, std::int64_t* ids, std::int64_t count) {
  const auto bits = static_cast<std::uint64_t>(number);
  switch (operation) {
    case kAdd: return for_ids(ids, count, [bits](std::uint64_t id) { return id + bits; });
    case kMultiply: return for_ids(ids, count, [bits](std::uint64_t id) { return id * bits; });
    case kDivide:
      return for_ids(ids, count,
                     [number](std::int64_t id) { return id / number - (id % number < 0 ? 1 : 0); });
    case kRemainder:
      return for_ids(ids, count, [number](std::int64_t id) { return remainder_of(id, number); });
    case kAtLeast:
      return for_ids(ids, count, [number](std::int64_t id) { return std::max(id, number); });
    case kAtMost:
      return for_ids(ids, count, [number](std::int64_t id) { return std::min(id, number); });
    default: break;
  }
}

std::int64_t wrap(std::int64_t* values, std::int64_t count, std::int64_t rows) {
  std::int64_t outside = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    if (!is_outside(values[i], rows)) continue;
    ++outside;
    values[i] = remainder_of(values[i], rows);
  }
  return outside;
}

// Copies ids and applies their feature's steps; true if all results are rows.
bool copy_rows(const Model& model, std::int64_t feature, const Source& source,
               const Target& target) {
  const std::int64_t rows = model.rows[feature], end = model.step_starts[feature + 1];
  const bool inside = copy_ids(source, target, rows);
  std::int64_t step = model.step_starts[feature];
  if (step == end) return inside;
  for (; step < end; ++step)
    step_ids(model.operations[step], model.operands[step], target.values, source.count);
  return std::none_of(target.values, target.values + source.count,
                      [rows](std::int64_t row) { return is_outside(row, rows); });
}

// Leaves some ids out, of the weights and lengths too; how many.
template <class Leaves>
std::int64_t drop(const Target& target, Leaves leaves) {
  std::int64_t from = 0, to = 0;
  for (std::int64_t bag = 0; bag < target.bags; ++bag) {
    const std::int64_t end = from + target.lengths[bag];
    const std::int64_t begin = to;
    for (; from < end; ++from) {
      if (leaves(target.values[from])) continue;
      target.values[to] = target.values[from];
      if (target.weights)
        std::memmove(target.weights + to * kFp32Bytes, target.weights + from * kFp32Bytes,
                     kFp32Bytes);
      ++to;
    }
    target.lengths[bag] = to - begin;
  }
  return from - to;
}

std::int64_t drop_outside(const Target& target, std::int64_t rows) {
  return drop(target, [rows](std::int64_t id) { return is_outside(id, rows); });
}

// Of `count` ids; most requests have no padding.
std::int64_t drop_padding(const Target& target, std::int64_t count, std::int64_t padding) {
  if (std::find(target.values, target.values + count, padding) == target.values + count) return 0;
  return drop(target, [padding](std::int64_t id) { return id == padding; });
}

// Puts -1 in place of some ids; how many.
template <class Leaves>
std::int64_t mark(std::int64_t* values, std::int64_t count, Leaves leaves) {
  std::int64_t marked = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    if (!leaves(values[i])) continue;
    values[i] = -1;
    ++marked;
  }
  return marked;
}

void put_weights(const Source& source, const Target& target) {
  if (source.weights) {
    for_runs(source, target, [&](std::int64_t first, std::int64_t to, std::int64_t count) {
      std::memcpy(target.weights + to * kFp32Bytes, source.weights->data + first * kFp32Bytes,
                  count * kFp32Bytes);
      return true;
    });
    return;
  }
  const float one = 1.0f;
  for (std::int64_t i = 0; i < source.count; ++i)
    std::memcpy(target.weights + i * kFp32Bytes, &one, sizeof one);
}

// Rows of a sequence as they came, -1 for those that are left out; whether none is refused.
bool put_sequence(Request& request, std::int64_t feature, const Source& source,
                  const Target& target) {
  const std::int64_t rows = request.model->rows[feature];
  const std::int64_t padding = request.model->paddings[feature];
  if (!copy_rows(*request.model, feature, source, target)) {
    const std::int32_t policy = request.model->policies[feature];
    if (policy == kRefuse) return false;
    // The tower's own input.
    if (policy == kPass) return true;
    if (policy == kModulo) {
      request.layout.ids_outside += wrap(target.values, source.count, rows);
    } else {
      const std::int64_t marked = mark(target.values, source.count,
                                       [rows](std::int64_t id) { return is_outside(id, rows); });
      request.layout.ids_outside += marked;
      request.layout.gaps |= marked > 0;
    }
  }
  if (padding >= 0)
    request.layout.gaps |=
        mark(target.values, source.count, [padding](std::int64_t id) { return id == padding; }) > 0;
  return true;
}

// Rows as they came; how many were dropped, or -1 where one is refused.
std::int64_t put_rows(Request& request, std::int64_t feature, const Source& source,
                      const Target& target) {
  if (request.model->in_sequence(feature))
    return put_sequence(request, feature, source, target) ? 0 : -1;
  const std::int64_t rows = request.model->rows[feature];
  std::int64_t dropped = 0;
  if (!copy_rows(*request.model, feature, source, target)) {
    const std::int32_t policy = request.model->policies[feature];
    if (policy == kRefuse) return -1;
    if (policy == kIgnore) dropped = drop_outside(target, rows);
    request.layout.ids_outside +=
        policy == kIgnore ? dropped : wrap(target.values, source.count, rows);
  }
  const std::int64_t padding = request.model->paddings[feature];
  return padding < 0 ? dropped : dropped + drop_padding(target, source.count - dropped, padding);
}

// Raw ids as they came, or the hashes of strings.
bool put_raw(const Model& model, std::int64_t input, const Source& source, const Target& target) {
  const Tensor& values = *source.values;
  if (values.datatype == kBytesType)
    return hash_elements({values.data, values.bytes}, source.count,
                         {StringHash(model.string_hashes[input]), model.string_seeds[input]},
                         target.values);
  // Whatever the limit is: ids are 64 bits.
  copy_ids(source, target, 1);
  return true;
}

// The rows of raw ids; as `put_rows`.
std::int64_t put_mapped(Request& request, std::int64_t feature, const Source& source,
                        const Target& target) {
  const Model& model = *request.model;
  const IdMap& map = *model.id_maps[feature];
  if (!put_raw(model, model.sources[feature], source, target)) return -1;
  std::int64_t unknown = 0;
  if (!map_ids(map, target.values, source.count, unknown)) return -1;
  if (unknown == 0) return 0;
  request.unknown[map.counted] += unknown;
  request.layout.ids_outside += unknown;
  if (map.unknown != kAbsent) return 0;
  if (model.in_sequence(feature)) {
    request.layout.gaps = 1;
    return 0;
  }
  return drop(target, [](std::int64_t row) { return row < 0; });
}

// One feature's ids and weights, whose lengths are there already.
bool put_ids(Request& request, std::int64_t feature, const Source& source, Target& target) {
  if (source.count == 0) {
    target.lengths += target.bags;
    return true;
  }
  if (target.weights) put_weights(source, target);
  const IdMap* map = request.model->id_maps[feature];
  const bool placed = map != nullptr && map->places != nullptr;
  const std::int64_t dropped = map == nullptr || placed
                                   ? put_rows(request, feature, source, target)
                                   : put_mapped(request, feature, source, target);
  if (dropped < 0) return false;
  const std::int64_t kept = source.count - dropped;
  if (placed && !place_ids(*map, target.values, kept)) return false;
  target.lengths += target.bags;
  target.values += kept;
  if (target.weights) target.weights += kept * kFp32Bytes;
  return true;
}

// The lengths of bags that hold `ids` ids; their sum, or -1 where one does not fit.
std::int64_t put_lengths(const Tensor& tensor, std::int64_t first, std::int64_t bags,
                         std::int64_t ids, std::int64_t* lengths) {
  if (!copy_numbers(tensor, first, bags, ids + 1, lengths)) return -1;
  // Below 2^31 bags of below 2^31 ids: no overflow.
  std::int64_t sum = 0;
  for (std::int64_t bag = 0; bag < bags; ++bag) sum += lengths[bag];
  return sum;
}

bool put_feature(Request& request, std::int64_t feature, Target& target) {
  const std::int64_t source = request.model->sources[feature], at = 3 * source;
  if (!request.present[at]) {
    std::fill_n(target.lengths, target.bags, std::int64_t{0});
    target.lengths += target.bags;
    return true;
  }
  const Tensor& ids = request.tensors[at];
  const std::int64_t each = request.model->values_of_id(source);
  std::int64_t count = ids.elements / each, row = 0;
  if (const Tensor* lengths = request.lengths_of(source)) {
    const bool padded = ids.rank == 2;
    const std::int64_t most = padded ? ids.sizes[1] : count;
    const std::int64_t sum = put_lengths(*lengths, 0, target.bags, most, target.lengths);
    if (sum < 0 || (!padded && sum != count)) return false;
    // Where nothing is padded, the ids are one run.
    if (sum != count) row = ids.sizes[1] * each;
    count = sum;
  } else {
    std::fill_n(target.lengths, target.bags, ids.rank == 2 ? ids.sizes[1] : std::int64_t{1});
  }
  if (each > 1)
    for (std::int64_t bag = 0; bag < target.bags; ++bag) target.lengths[bag] *= each;
  const Tensor* weights = request.present[at + 2] ? &request.tensors[at + 2] : nullptr;
  return put_ids(request, feature, {&ids, weights, 0, count * each, row}, target);
}

// Whether an input of a sequence, whose lengths are written, has those of the sequence's first one,
// none of which is too short.
bool agrees(Request& request, std::int64_t feature, const std::int64_t* lengths,
            const Target& target, const std::int64_t* out) {
  const Model& model = *request.model;
  const std::int64_t source = model.sources[feature];
  if (source == model.firsts[source]) request.starts[source] = lengths - out;
  const std::int64_t* expected = out + request.starts[model.firsts[source]];
  const std::int64_t each = model.values_of_id(source), shortest = model.shortest[source];
  for (std::int64_t bag = 0; bag < target.bags; ++bag)
    if (expected[bag] < shortest || lengths[bag] != expected[bag] * each) return false;
  return true;
}

bool put_all_at_once(Request& request, Target& target) {
  const Model& model = *request.model;
  const std::int64_t at = model.all_at_once();
  const Tensor &values = request.tensors[at], &lengths = request.tensors[at + 1];
  const Tensor* weights = request.present[at + 2] ? &request.tensors[at + 2] : nullptr;
  std::int64_t end = 0, met = 0;  // of the inputs met so far: the end of their ids, how many
  for (std::int64_t feature = 0; feature < model.features; ++feature) {
    const std::int64_t input = model.sources[feature];
    const bool is_first = input == met;
    if (is_first) request.starts[met++] = end;
    const std::int64_t start = request.starts[input], left = values.elements - start;
    const std::int64_t count =
        put_lengths(lengths, input * target.bags, target.bags, left, target.lengths);
    if (count < 0 || count > left) return false;
    if (!put_ids(request, feature, {&values, weights, start, count, 0}, target)) return false;
    if (is_first) end += count;
  }
  return end == values.elements;
}

}  // namespace

bool Request::fill(std::int64_t* out) {
  Target targets[2];
  for (int i = 0; i < 2; ++i) {
    const Group& group = layout.groups[i];
    auto* weights = reinterpret_cast<std::uint8_t*>(out + group.weights_at);
    targets[i] = {out + group.lengths_at, out + group.values_at, group.weighted ? weights : nullptr,
                  group.bags};
  }
  layout.ids_outside = 0;
  std::fill_n(unknown, model->mapped, std::int64_t{0});
  if (layout.at_once) {
    if (!put_all_at_once(*this, targets[!own[0]])) return false;
  } else {
    for (std::int64_t feature = 0; feature < model->features; ++feature) {
      Target& target = targets[!own[feature]];
      const std::int64_t* lengths = target.lengths;
      if (!put_feature(*this, feature, target)) return false;
      if (model->in_sequence(feature) && !agrees(*this, feature, lengths, target, out))
        return false;
    }
  }
  for (int i = 0; i < 2; ++i)
    layout.groups[i].ids = targets[i].values - (out + layout.groups[i].values_at);
  for (std::int64_t dense = 0; dense < model->dense; ++dense) {
    const Tensor& tensor = tensors[3 * model->sparse + dense];
    if (tensor.elements > 0)
      std::memcpy(out + dense_at[dense], tensor.data, tensor.elements * kFp32Bytes);
  }
  return true;
}

void Request::count_unknown() const {
  sharded_infer::count_unknown(model->unknown_ids, unknown, model->mapped);
}

}  // namespace sharded_infer
