// See merge.h.
#include "merge.h"

#include <algorithm>

#include "features.h"
#include "reader/layout.h"

namespace sharded_infer::call {
namespace {

struct Target {
  std::int64_t* lengths;
  std::int64_t* values;
  float* weights;  // null: it has none
};

void append(Target& target, const Source& source, std::int64_t bags, std::int64_t ids) {
  target.lengths = std::copy_n(source.lengths, bags, target.lengths);
  target.values = std::copy_n(source.values, ids, target.values);
  if (target.weights == nullptr) return;
  target.weights = source.weights == nullptr ? std::fill_n(target.weights, ids, 1.0f)
                                             : std::copy_n(source.weights, ids, target.weights);
}

// Each feature's group: 1 where some call of several samples has a bag for each of them.
void choose_groups(const std::vector<Call*>& calls, std::vector<std::uint8_t>& own) {
  const std::size_t features = calls[0]->own.size();
  bool several = false;
  own.assign(features, 0);
  for (const Call* call : calls) {
    if (call->samples() == 1) continue;
    several = true;
    for (std::size_t feature = 0; feature < features; ++feature) own[feature] |= call->own[feature];
  }
  if (!several) own.assign(features, 1);
}

void merge_dense(const std::vector<Call*>& calls, MergedInput& merged) {
  const Model& model = calls[0]->route->model();
  for (std::int64_t dense = 0; dense < model.dense; ++dense) {
    const std::int64_t width = model.widths[dense];
    float* to = floats(merged.memory.data() + merged.dense_at[std::size_t(dense)]);
    for (const Call* call : calls) {
      const std::int64_t rows = call->dense_rows[std::size_t(dense)];
      // One row is all samples'.
      for (std::int64_t left = call->samples(); left > 0; left -= rows)
        to = std::copy_n(call->dense(dense), rows * width, to);
    }
  }
}

}  // namespace

void merge(const std::vector<Call*>& calls, MergedInput& merged) {
  const Call& first = *calls[0];
  if (calls.size() == 1) {
    merged.layout = first.layout;
    merged.own = first.own;
    merged.dense_at = first.dense_at;
    merged.dense_rows = first.dense_rows;
    merged.words = first.words.get();
    return;
  }
  choose_groups(calls, merged.own);
  Layout& layout = merged.layout;
  layout = Layout();
  for (const Call* call : calls) {
    merged.sizes.push_back(call->samples());
    layout.batch += call->samples();
    layout.ids_outside += call->layout.ids_outside;
    layout.gaps |= call->layout.gaps;
  }
  for (const std::uint8_t own : merged.own) ++layout.groups[!own].features;
  const std::int64_t bags[2] = {layout.batch, std::int64_t(calls.size())};
  for (int number = 0; number < 2; ++number)
    if (layout.groups[number].features > 0) layout.groups[number].bags = bags[number];
  each_feature(calls, [&](std::size_t feature, const Call& call, const Source& source, std::int64_t,
                          std::int64_t ids) {
    Group& group = layout.groups[!merged.own[feature]];
    const bool repeated = merged.own[feature] && !call.own[feature];
    group.ids += repeated ? ids * call.samples() : ids;
    group.weighted |= source.weights != nullptr;
  });
  const Model& model = first.route->model();
  merged.dense_rows.assign(std::size_t(model.dense), layout.batch);
  merged.dense_at.resize(std::size_t(model.dense));
  place(model, layout, merged.dense_at.data(), merged.dense_rows.data());
  merged.memory.resize(std::size_t(layout.words));
  merged.words = merged.memory.data();
  Target targets[2];
  for (int number = 0; number < 2; ++number) {
    const Group& group = layout.groups[number];
    std::int64_t* words = merged.memory.data();
    targets[number] = {words + group.lengths_at, words + group.values_at,
                       group.weighted ? floats(words + group.weights_at) : nullptr};
  }
  each_feature(calls, [&](std::size_t feature, const Call& call, const Source& source,
                          std::int64_t count, std::int64_t ids) {
    const bool repeated = merged.own[feature] && !call.own[feature];
    Target& target = targets[!merged.own[feature]];
    for (std::int64_t times = repeated ? call.samples() : 1; times > 0; --times)
      append(target, source, count, ids);
  });
  merge_dense(calls, merged);
}

std::int64_t work_units(const Model& model, const Layout& layout, const std::uint8_t* own,
                        const std::int64_t* words) {
  constexpr std::int64_t kGrain = 8;
  std::int64_t units = layout.batch;
  if (!model.has_sequences) return units;
  for (int number = 0; number < 2; ++number) {
    const Group& group = layout.groups[number];
    const std::int64_t* lengths = words + group.lengths_at;
    for (std::int64_t feature = 0; feature < model.features; ++feature) {
      if (own[feature] == (number == 1)) continue;
      const std::int64_t longest = model.longest[feature];
      std::int64_t grains = 0;
      for (std::int64_t bag = 0; longest > 0 && bag < group.bags; ++bag)
        grains += (std::min(lengths[bag], longest) + kGrain - 1) / kGrain;
      // Bags that samples share are those of one call here.
      const bool repeated = group.bags != layout.batch && !model.computed_once[feature];
      units += repeated ? grains * layout.batch : grains;
      lengths += group.bags;
    }
  }
  return units;
}

}  // namespace sharded_infer::call
