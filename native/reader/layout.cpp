// See layout.h.
#include "layout.h"

#include <algorithm>
#include <utility>

namespace sharded_infer {
namespace {

bool holds_integers(const Tensor& tensor) {
  return tensor.datatype != kFp32Type && tensor.datatype != kBytesType;
}

bool same_shape(const Tensor& a, const Tensor& b) {
  return a.rank == b.rank && a.sizes[0] == b.sizes[0] && (a.rank == 1 || a.sizes[1] == b.sizes[1]);
}

// Numbers of samples: the largest, which all others are, or 1.
class Samples {
 public:
  void add(std::int64_t samples) {
    largest_ = std::max(largest_, samples);
    if (samples != 1) smallest_ = std::min(smallest_, samples);
  }
  bool fit(std::int64_t limit) const {
    const bool same = smallest_ == kNone || smallest_ == largest_;
    return same && largest_ >= 1 && largest_ <= limit;
  }
  std::int64_t largest() const { return largest_; }

 private:
  static constexpr std::int64_t kNone = INT64_MAX;
  std::int64_t largest_ = 0;
  std::int64_t smallest_ = kNone;  // of those that are not 1
};

// Bags of a sparse input that came, or -1.
std::int64_t bags_of(const Request& request, std::int64_t source) {
  const std::int64_t at = 3 * source;
  const Tensor& ids = request.tensors[at];
  if (ids.datatype == kFp32Type) return -1;
  if (request.present[at + 2]) {
    const Tensor& weights = request.tensors[at + 2];
    if (weights.datatype != kFp32Type || !same_shape(weights, ids)) return -1;
  }
  const Tensor* lengths = request.lengths_of(source);
  if (lengths == nullptr) return ids.sizes[0];
  if (!holds_integers(*lengths) || lengths->rank != 1) return -1;
  // Padded: strings are of any size, so where a bag of them begins is not known.
  if (ids.rank == 2 && (ids.sizes[0] != lengths->sizes[0] || ids.datatype == kBytesType)) return -1;
  return lengths->sizes[0];
}

// Whether an input of a sequence came as the sequence's first one did, with as many samples and
// without weights; or neither came.
bool fits_sequence(const Request& request, std::int64_t source) {
  const std::int64_t at = 3 * source, first = request.model->firsts[source];
  if (request.present[at] != request.present[3 * first] || request.present[at + 2]) return false;
  return !request.present[at] || bags_of(request, source) == bags_of(request, first);
}

bool add_dense(const Request& request, Samples& samples) {
  const Model& model = *request.model;
  for (std::int64_t dense = 0; dense < model.dense; ++dense) {
    const std::int64_t at = 3 * model.sparse + dense;
    const Tensor& tensor = request.tensors[at];
    if (!request.present[at] || tensor.datatype != kFp32Type) return false;
    // One number a sample may come as [B].
    if ((tensor.rank == 2 ? tensor.sizes[1] : 1) != model.widths[dense]) return false;
    request.dense_rows[dense] = tensor.sizes[0];
    samples.add(tensor.sizes[0]);
  }
  return true;
}

bool group_all_at_once(Request& request, std::int64_t inputs, Samples& samples) {
  const Model& model = *request.model;
  const std::int64_t at = model.all_at_once();
  const bool weighted = request.present[at + 2];
  for (std::int64_t source = 0; source < model.sparse; ++source)
    if (model.firsts[source] >= 0) return false;
  // Beside them only the dense inputs, which are all there.
  if (!request.present[at] || !request.present[at + 1]) return false;
  if (inputs != model.dense + 2 + weighted) return false;
  const Tensor &values = request.tensors[at], &lengths = request.tensors[at + 1];
  if (!holds_integers(values) || !holds_integers(lengths)) return false;
  if (values.rank != 1 || lengths.rank != 2 || lengths.sizes[0] != model.sparse) return false;
  if (weighted) {
    const Tensor& weights = request.tensors[at + 2];
    if (weights.datatype != kFp32Type || !same_shape(weights, values)) return false;
  }
  samples.add(lengths.sizes[1]);
  std::memset(request.own, 1, model.features);
  // How many ids each input has is not known yet.
  const std::int64_t room = values.elements * model.most_copies;
  request.layout.groups[0] = {model.features, lengths.sizes[1], room, weighted, 0, 0, 0};
  return true;
}

bool group_features(Request& request, Samples& samples) {
  const Model& model = *request.model;
  bool shares = false;
  for (std::int64_t feature = 0; feature < model.features; ++feature) {
    request.own[feature] = 0;
    const std::int64_t source = model.sources[feature], at = 3 * source;
    if (model.in_sequence(feature) && !fits_sequence(request, source)) return false;
    if (!request.present[at]) {
      if (model.required[source]) return false;
      if (request.present[at + 1] || request.present[at + 2]) return false;
      continue;
    }
    const std::int64_t bags = bags_of(request, source);
    if (bags < 0) return false;
    samples.add(bags);
    request.own[feature] = bags != 1;
    shares |= bags == 1;
  }
  const std::int64_t batch = samples.largest();
  if (!shares || batch == 1) std::memset(request.own, 1, model.features);
  Group* groups = request.layout.groups;
  for (std::int64_t feature = 0; feature < model.features; ++feature) {
    Group& group = groups[!request.own[feature]];
    ++group.features;
    const std::int64_t at = 3 * model.sources[feature];
    if (!request.present[at]) continue;
    group.ids += request.tensors[at].elements;
    group.weighted |= request.present[at + 2];
  }
  if (groups[0].features > 0) groups[0].bags = batch;
  if (groups[1].features > 0) groups[1].bags = 1;
  return true;
}

}  // namespace

void place(const Model& model, Layout& layout, std::int64_t* dense_at,
           const std::int64_t* dense_rows) {
  std::int64_t words = 0;
  for (Group& group : layout.groups) {
    group.lengths_at = words;
    group.values_at = group.lengths_at + group.features * group.bags;
    group.weights_at = group.values_at + group.ids;
    words = group.weights_at + (group.weighted ? (group.ids + 1) / 2 : 0);
  }
  for (std::int64_t dense = 0; dense < model.dense; ++dense) {
    dense_at[dense] = words;
    words += (dense_rows[dense] * model.widths[dense] + 1) / 2;
  }
  layout.words = words;
}

bool lay_out(Request& request, std::int64_t inputs) {
  request.layout = Layout();
  const Model& model = *request.model;
  const std::uint8_t* at_once = &request.present[std::size_t(model.all_at_once())];
  request.layout.at_once = at_once[0] || at_once[1] || at_once[2];
  Samples samples;
  if (!add_dense(request, samples)) return false;
  if (request.layout.at_once ? !group_all_at_once(request, inputs, samples)
                             : !group_features(request, samples))
    return false;
  if (!samples.fit(model.max_batch)) return false;
  // Before there is memory for them: an input's ids are copied for each of its features.
  if (request.layout.groups[0].ids + request.layout.groups[1].ids > model.max_ids) return false;
  request.layout.batch = samples.largest();
  if (request.layout.at_once && request.layout.groups[0].bags != request.layout.batch) {
    // One bag of each feature for all samples.
    std::swap(request.layout.groups[0], request.layout.groups[1]);
    std::memset(request.own, 0, model.features);
  }
  place(model, request.layout, request.dense_at, request.dense_rows);
  return true;
}

}  // namespace sharded_infer
