// Merging requests' bags into one batch: only copying, driven by how each request is laid out.
//
//   for each request: where the bags and ids of each feature begin in the source
//   for each merged group, for each of its features, for each request:
//       shared by the request's samples, and so in the merged group: copy its one bag
//       shared by the request's samples, but not in the merged group: copy it for every sample
//       otherwise: copy the bags of all its samples
//
// The source is all requests' groups one after another, each feature-major.
#include <cstdint>
#include <cstring>

#include "abi/merge.h"
#include "merge_bags.h"

namespace sharded_infer {

namespace {

// Where a group is written to next.
struct Target {
  std::int64_t* lengths;
  std::int64_t* values;
  float* weights;

  void put(const Merge& merge, std::int64_t bags, std::int64_t ids, std::int64_t bag_count,
           std::int64_t id_count) {
    if (bag_count == 1)
      *lengths = merge.lengths[bags];
    else
      std::memcpy(lengths, merge.lengths + bags, bag_count * sizeof *lengths);
    lengths += bag_count;
    // Most bags are small: a call would cost more than the copying.
    if (id_count > 16)
      std::memcpy(values, merge.values + ids, id_count * sizeof *values);
    else
      for (std::int64_t i = 0; i < id_count; ++i) values[i] = merge.values[ids + i];
    values += id_count;
    if (weights == nullptr || id_count == 0) return;
    std::memcpy(weights, merge.weights + ids, id_count * sizeof *weights);
    weights += id_count;
  }
};

}  // namespace
}  // namespace sharded_infer

using namespace sharded_infer;

extern "C" {

void sharded_infer_measure_merge(Merge* measured) {
  Merge& merge = *measured;
  const std::int64_t features = merge.features;
  std::int64_t bag = 0, value = 0;
  merge.id_counts[0] = merge.id_counts[1] = 0;
  for (std::int64_t request = 0; request < merge.requests; ++request) {
    const std::int64_t layout = merge.layouts[request] * features;
    const std::int64_t samples = merge.batch_sizes[request];
    for (std::int64_t place = 0; place < features; ++place) {
      const std::int64_t feature = merge.order[layout + place];
      const bool single = merge.single[layout + place];
      const std::int64_t bags = single ? 1 : samples;
      std::int64_t ids = 0;
      for (std::int64_t i = 0; i < bags; ++i) ids += merge.lengths[bag + i];
      merge.places[request * features + feature] = {bag, value, ids, single};
      const bool shared = merge.shared[feature];
      merge.id_counts[shared] += single && !shared ? ids * samples : ids;
      bag += bags;
      value += ids;
    }
  }
}

void sharded_infer_merge(const Merge* measured) {
  const Merge& merge = *measured;
  Target targets[2];
  for (int i = 0; i < 2; ++i)
    targets[i] = {merge.groups[i].lengths, merge.groups[i].values, merge.groups[i].weights};
  for (std::int64_t feature = 0; feature < merge.features; ++feature) {
    const bool shared = merge.shared[feature];
    Target& target = targets[shared];
    for (std::int64_t request = 0; request < merge.requests; ++request) {
      const Place& place = merge.places[request * merge.features + feature];
      const std::int64_t samples = merge.batch_sizes[request];
      if (!place.single || shared) {
        target.put(merge, place.bags, place.ids, shared ? 1 : samples, place.count);
      } else {
        for (std::int64_t sample = 0; sample < samples; ++sample)
          target.put(merge, place.bags, place.ids, 1, place.count);
      }
    }
  }
}

void sharded_infer_merge_uniform(const Uniform* uniform) {
  const Uniform& merge = *uniform;
  merge_bags({merge.parts, merge.parts + merge.requests}, merge.features, merge.out.lengths,
             merge.out.values, merge.out.weights);
}
}
