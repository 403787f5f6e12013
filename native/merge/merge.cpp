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

#include "merge_bags.h"

namespace sharded_infer {

// One of the two groups of a merged batch; the arrays are row-major and have room for everything.
struct Group {
  std::int64_t* lengths;  // [features of the group, samples or requests]
  std::int64_t* values;
  float* weights;  // or null
};

// Where a feature of a request is in the source.
struct Place {
  std::int64_t bags;    // the first one
  std::int64_t ids;     // the first one
  std::int64_t count;   // ids of all its bags
  std::int64_t single;  // whether it has one bag for all the request's samples
};

struct Merge {
  std::int64_t requests;
  std::int64_t features;
  const std::int64_t* batch_sizes;  // [requests]
  const std::int64_t* layouts;      // [requests], each below the number of layouts
  const std::int64_t* order;        // [layouts, features]: the feature at each place of the source
  const std::uint8_t* single;       // [layouts, features]: whether that place has one bag for all
  const std::uint8_t* shared;       // [features]: whether the merged group has one bag a request
  const std::int64_t* lengths;      // the source
  const std::int64_t* values;
  const float* weights;  // or null
  // What `measure` finds and `copy` reads.
  Place* places;              // [requests, features]
  std::int64_t id_counts[2];  // of the merged groups: one bag a sample, one bag a request
  Group groups[2];
};

// Requests of one layout: each group is merged by itself, with no need to look anything up.
struct Uniform {
  std::int64_t requests;
  std::int64_t features;
  const BagSource* parts;  // [requests]
  Group out;
};

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

#define EXPORTED __attribute__((visibility("default")))

extern "C" {

// Finds where everything is, and how many ids each merged group has.
EXPORTED void sharded_infer_measure_merge(Merge* measured) {
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

// Copies; sharded_infer_measure_merge must have run on the same structure.
EXPORTED void sharded_infer_merge(const Merge* measured) {
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

// Copies one group of all requests, feature-major.
EXPORTED void sharded_infer_merge_uniform(const Uniform* uniform) {
  const Uniform& merge = *uniform;
  merge_bags({merge.parts, merge.parts + merge.requests}, merge.features, merge.out.lengths,
             merge.out.values, merge.out.weights);
}
}
