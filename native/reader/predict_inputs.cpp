// See predict_inputs.h. Field numbers are those of protos/sharded_infer/v1/predictor.proto.
#include "predict_inputs.h"

namespace sharded_infer {

enum InputsField : std::uint32_t { kSparse = 1, kDense = 2 };

enum SparseField : std::uint32_t {
  kSparseName = 1,
  kIds = 2,
  kLongIds = 3,
  kLengths = 4,
  kWeights = 5,
  kIdsPerBag = 6,
  kStrings = 7,
  kStringLengths = 8,
};

enum DenseField : std::uint32_t { kDenseName = 1, kValues = 2, kDenseLengths = 3 };

struct SparseFeature {
  Bytes name, ids, long_ids, lengths, weights, strings, string_lengths;
  std::int64_t ids_per_bag = 0;
  std::uint32_t seen = 0;

  bool has(std::uint32_t field) const { return seen >> field & 1; }
  bool has_strings() const { return has(kStrings) || has(kStringLengths); }
};

struct DenseInput {
  Bytes name, values, lengths;
  bool has_lengths = false;
};

namespace {

bool read_sparse(Bytes message, SparseFeature& feature) {
  WireReader reader(message);
  while (!reader.done()) {
    std::uint32_t field, type;
    if (!reader.read_tag(field, type) || !first_time(feature.seen, field)) return false;
    if (field == kIdsPerBag) {
      std::uint64_t number;
      if (type != kVarint || !reader.read_varint(number)) return false;
      if (number == 0 || number >= static_cast<std::uint64_t>(kMaxSize)) return false;
      feature.ids_per_bag = static_cast<std::int64_t>(number);
      continue;
    }
    Bytes bytes;
    if (type != kBytes || !reader.read_bytes(bytes)) return false;
    switch (field) {
      case kSparseName: feature.name = bytes; break;
      case kIds: feature.ids = bytes; break;
      case kLongIds: feature.long_ids = bytes; break;
      case kLengths: feature.lengths = bytes; break;
      case kWeights: feature.weights = bytes; break;
      case kStrings: feature.strings = bytes; break;
      case kStringLengths: feature.string_lengths = bytes; break;
      default: return false;
    }
  }
  return feature.has(kIds) + feature.has(kLongIds) + feature.has_strings() <= 1;
}

bool read_dense(Bytes message, DenseInput& input) {
  WireReader reader(message);
  std::uint32_t seen = 0;
  while (!reader.done()) {
    std::uint32_t field, type;
    Bytes bytes;
    if (!reader.read_tag(field, type) || !first_time(seen, field)) return false;
    if (type != kBytes || !reader.read_bytes(bytes)) return false;
    if (field == kDenseName)
      input.name = bytes;
    else if (field == kValues)
      input.values = bytes;
    else if (field == kDenseLengths)
      input.lengths = bytes, input.has_lengths = true;
    else
      return false;
  }
  return true;
}

}  // namespace

bool PredictInputs::read(Bytes message, bool user) {
  WireReader reader(message);
  while (!reader.done()) {
    std::uint32_t field, type;
    Bytes bytes;
    if (!reader.read_tag(field, type) || type != kBytes || !reader.read_bytes(bytes)) return false;
    if (++parts_ > model_.max_inputs) return false;
    if (field == kSparse) {
      SparseFeature feature;
      if (!read_sparse(bytes, feature) || !add(feature, user)) return false;
    } else if (field == kDense) {
      DenseInput input;
      if (!read_dense(bytes, input) || !add(input, user)) return false;
    } else {
      return false;
    }
  }
  return true;
}

bool PredictInputs::add(const SparseFeature& feature, bool user) {
  const std::int32_t found = find(feature.name);
  if (found < 0 || found >= 3 * model_.sparse || found % 3 != 0) return false;
  if (!take(found)) return false;
  Tensor& ids = request_.tensors[found];
  // Numbers of no ids look like ids.
  if (model_.numbers_of(found) > 0 && (feature.ids.size > 0 || feature.long_ids.size > 0))
    return false;
  if (feature.has_strings()) {
    if (!model_.takes_strings(found) || !set_strings(ids, feature)) return false;
  } else {
    const bool is_long = feature.has(kLongIds);
    if (!set(ids, is_long ? feature.long_ids : feature.ids, is_long ? kInt64Type : kUint32Type))
      return false;
  }
  if (user ? !shape_user(ids, feature) : !shape_candidates(ids, feature, found)) return false;
  if (!user) {
    const Tensor& counted = feature.has(kLengths) ? request_.tensors[found + 1] : ids;
    if (counted.sizes[0] > candidates_) candidates_ = counted.sizes[0];
  }
  if (!feature.has(kWeights)) return true;
  Tensor& weights = request_.tensors[found + 2];
  if (!model_.is_named(found + 2) || !take(found + 2) || !set(weights, feature.weights, kFp32Type))
    return false;
  if (weights.elements != ids.elements) return false;
  weights.rank = ids.rank;
  weights.sizes[0] = ids.sizes[0];
  weights.sizes[1] = ids.sizes[1];
  return true;
}

// Copies strings as the elements of a BYTES tensor.
bool PredictInputs::set_strings(Tensor& tensor, const SparseFeature& feature) {
  std::vector<std::uint8_t>& copied = request_.copied;
  // Copies have as many bytes as what they are of, so those of other features never move.
  copied.reserve(message_bytes_);
  const std::size_t begin = copied.size();
  WireReader strings(feature.strings), lengths(feature.string_lengths);
  while (!lengths.done()) {
    const std::uint8_t* length = lengths.at();
    std::uint32_t bytes;
    if (!lengths.skip(sizeof bytes)) return false;
    std::memcpy(&bytes, length, sizeof bytes);
    const std::uint8_t* string = strings.at();
    if (!strings.skip(bytes)) return false;
    copied.insert(copied.end(), length, length + sizeof bytes);
    copied.insert(copied.end(), string, string + bytes);
  }
  if (!strings.done()) return false;
  tensor.data = copied.data() + begin;
  tensor.bytes = std::int64_t(copied.size() - begin);
  tensor.elements = feature.string_lengths.size / std::int64_t(sizeof(std::uint32_t));
  tensor.rank = 1;
  tensor.sizes[0] = tensor.elements;
  tensor.sizes[1] = 0;
  tensor.datatype = kBytesType;
  return true;
}

// All ids are one bag.
bool PredictInputs::shape_user(Tensor& ids, const SparseFeature& feature) {
  if (feature.has(kLengths) || feature.has(kIdsPerBag)) return false;
  ids.rank = 2;
  ids.sizes[0] = 1;
  ids.sizes[1] = ids.elements;
  return true;
}

bool PredictInputs::shape_candidates(Tensor& ids, const SparseFeature& feature,
                                     std::int32_t found) {
  if (feature.has(kLengths)) {
    if (feature.has(kIdsPerBag) || !take(found + 1)) return false;
    return set(request_.tensors[found + 1], feature.lengths, kUint32Type);
  }
  if (!feature.has(kIdsPerBag)) return ids.elements > 0;
  if (ids.elements % feature.ids_per_bag != 0) return false;
  ids.rank = 2;
  ids.sizes[0] = ids.elements / feature.ids_per_bag;
  ids.sizes[1] = feature.ids_per_bag;
  return true;
}

bool PredictInputs::add(const DenseInput& input, bool user) {
  const std::int32_t found = find(input.name);
  if (found >= 0 && model_.numbers_of(found) > 0) return add_numbers(found, input, user);
  const std::int64_t dense = found - 3 * model_.sparse;
  if (found < 0 || input.has_lengths || dense < 0 || dense >= model_.dense || !take(found))
    return false;
  Tensor& tensor = request_.tensors[found];
  if (!set(tensor, input.values, kFp32Type)) return false;
  const std::int64_t width = model_.widths[dense];
  if (width == 0 || tensor.elements % width != 0) return false;
  tensor.rank = 2;
  tensor.sizes[0] = tensor.elements / width;
  tensor.sizes[1] = width;
  if (!user && tensor.sizes[0] == 1) single_row_ = true;
  return !user || tensor.sizes[0] == 1;
}

// Numbers that come with the ids of a sequence: their bits, of the shape of the ids.
bool PredictInputs::add_numbers(std::int32_t found, const DenseInput& input, bool user) {
  Tensor& tensor = request_.tensors[found];
  const std::int64_t width = model_.numbers_of(found);
  if (!take(found) || !set(tensor, input.values, kUint32Type)) return false;
  if (tensor.elements % width != 0) return false;
  tensor.sizes[0] = tensor.elements / width;
  if (input.has_lengths)
    return !user && take(found + 1) && set(request_.tensors[found + 1], input.lengths, kUint32Type);
  if (!user && divided_ != 0 && divided_ != candidates_) return false;
  if (!user) divided_ = candidates_;
  const std::int64_t bags = user ? 1 : candidates_;
  if (bags == 0 || tensor.sizes[0] % bags != 0) return false;
  tensor.rank = 2;
  tensor.sizes[1] = tensor.sizes[0] / bags;
  tensor.sizes[0] = bags;
  return true;
}

// A vector of packed numbers.
bool PredictInputs::set(Tensor& tensor, Bytes bytes, std::int32_t datatype) {
  const std::int64_t size = item_bytes(datatype);
  if (bytes.size % size != 0) return false;
  tensor.data = bytes.data;
  tensor.bytes = bytes.size;
  tensor.elements = bytes.size / size;
  tensor.rank = 1;
  tensor.sizes[0] = tensor.elements;
  tensor.sizes[1] = 0;
  tensor.datatype = datatype;
  return true;
}

// Marks an input as present; false for a repeated one.
bool PredictInputs::take(std::int32_t input) {
  if (request_.present[input]) return false;
  request_.present[input] = 1;
  ++inputs_;
  return true;
}

// The input of a name, or -1.
std::int32_t PredictInputs::find(Bytes name) {
  const std::int32_t found = request_.find(name, previous_);
  if (found >= 0) previous_ = found;
  return found;
}

}  // namespace sharded_infer
