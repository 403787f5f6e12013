// See merge.h.
#include "merge.h"

#include <algorithm>
#include <utility>

#include "merge/merge_bags.h"

namespace sharded_infer::calls {
namespace {

const float* floats(const std::int64_t* words) { return reinterpret_cast<const float*>(words); }
float* floats(std::int64_t* words) { return reinterpret_cast<float*>(words); }

// Whether each sample has a bag of its own in the first group, of the same features as the first
// call's.
bool alike(const HeldCall& call, const HeldCall& first) {
  const Group *groups = call.layout.groups, *others = first.layout.groups;
  return groups[0].bags == call.layout.batch && groups[0].features == others[0].features &&
         groups[1].features == others[1].features && call.own == first.own;
}

void merge_group(HeldCall* const* calls, std::int64_t count, int number, const Group& merged,
                 std::int64_t* words) {
  std::vector<BagSource> sources(static_cast<std::size_t>(count));
  for (std::int64_t at = 0; at < count; ++at) {
    const Group& group = calls[at]->layout.groups[number];
    const std::int64_t* from = calls[at]->words.get();
    sources[std::size_t(at)] = {from + group.lengths_at, from + group.values_at,
                                group.weighted ? floats(from + group.weights_at) : nullptr,
                                group.bags};
  }
  merge_bags(std::move(sources), merged.features, words + merged.lengths_at,
             words + merged.values_at,
             merged.weighted ? floats(words + merged.weights_at) : nullptr);
}

}  // namespace

bool lay_out_merge(HeldCall* const* calls, std::int64_t count, Layout& merged,
                   std::int64_t* dense_at) {
  merged = Layout();
  const HeldCall& first = *calls[0];
  if (first.layout.groups[0].features == 0) return false;
  for (std::int64_t at = 0; at < count; ++at) {
    const HeldCall& call = *calls[at];
    if (!alike(call, first)) return false;
    merged.batch += call.layout.batch;
    merged.ids_outside += call.layout.ids_outside;
    for (int number = 0; number < 2; ++number) {
      const Group& group = call.layout.groups[number];
      merged.groups[number].ids += group.ids;
      merged.groups[number].weighted |= group.weighted;
    }
  }
  const std::int64_t bags[2] = {merged.batch, count};
  for (int number = 0; number < 2; ++number) {
    Group& group = merged.groups[number];
    group.features = first.layout.groups[number].features;
    group.bags = bags[number];
    group.lengths_at = merged.words;
    group.values_at = group.lengths_at + group.features * group.bags;
    group.weights_at = group.values_at + group.ids;
    merged.words = group.weights_at + (group.weighted ? (group.ids + 1) / 2 : 0);
  }
  const Model& model = first.route->model();
  for (std::int64_t dense = 0; dense < model.dense; ++dense) {
    dense_at[dense] = merged.words;
    merged.words += (merged.batch * model.widths[dense] + 1) / 2;
  }
  return true;
}

void merge(HeldCall* const* calls, std::int64_t count, const Layout& merged,
           const std::int64_t* dense_at, std::int64_t* words, std::int64_t* sizes) {
  for (int number = 0; number < 2; ++number)
    if (merged.groups[number].features > 0)
      merge_group(calls, count, number, merged.groups[number], words);
  for (std::int64_t at = 0; at < count; ++at) sizes[at] = calls[at]->layout.batch;
  const Model& model = calls[0]->route->model();
  for (std::int64_t dense = 0; dense < model.dense; ++dense) {
    const std::int64_t width = model.widths[dense];
    float* to = floats(words + dense_at[dense]);
    for (std::int64_t at = 0; at < count; ++at) {
      const HeldCall& call = *calls[at];
      const float* from = floats(call.words.get() + call.dense_at[std::size_t(dense)]);
      const std::int64_t rows = call.dense_rows[std::size_t(dense)];
      // One row is all samples'.
      for (std::int64_t left = call.layout.batch; left > 0; left -= rows)
        to = std::copy_n(from, rows * width, to);
    }
  }
}

}  // namespace sharded_infer::calls
