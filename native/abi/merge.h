// Merging requests' bags into one batch; see merge/merge.cpp.
#pragma once
#include <cstdint>

#include "abi/exported.h"

namespace sharded_infer {

// One of the two groups of a merged batch; the arrays are row-major and have room for everything.
struct MergedGroup {
  std::int64_t* lengths;  // [features of the group, samples or requests]
  std::int64_t* values;
  float* weights;  // or null
};

// Where a feature of a request is in the source.
struct Place {
  std::int64_t bags;    // the first one
  std::int64_t ids;     // the first one
  std::int64_t count;   // ids of all its bags
  std::int64_t single;  // it has one bag for all the request's samples
};

struct Merge {
  std::int64_t requests;
  std::int64_t features;
  const std::int64_t* batch_sizes;  // [requests]
  const std::int64_t* layouts;      // [requests], each below the number of layouts
  const std::int64_t* order;        // [layouts, features]: the feature at each place of the source
  const std::uint8_t* single;       // [layouts, features]: that place has one bag for all
  const std::uint8_t* shared;       // [features]: the merged group has one bag a request
  const std::int64_t* lengths;      // the source
  const std::int64_t* values;
  const float* weights;  // or null
  // Results of `measure`, which `copy` reads.
  Place* places;              // [requests, features]
  std::int64_t id_counts[2];  // of the merged groups: one bag a sample, one bag a request
  MergedGroup groups[2];
};

// The rest of a request's group, from the next feature on.
struct BagSource {
  const std::int64_t* lengths;
  const std::int64_t* values;
  const float* weights;  // null: all are 1
  std::int64_t bags;     // a feature
};

// Requests of one layout: each group is merged by itself, with no need to look anything up.
struct Uniform {
  std::int64_t requests;
  std::int64_t features;
  const BagSource* parts;  // [requests]
  MergedGroup out;
};

}  // namespace sharded_infer

extern "C" {

// Finds where everything is, and how many ids each merged group has.
EXPORTED_BOTH_WAYS void sharded_infer_measure_merge(sharded_infer::Merge* merge);

// Copies; sharded_infer_measure_merge must have run on the same structure.
EXPORTED_BOTH_WAYS void sharded_infer_merge(const sharded_infer::Merge* merge);

// Copies one group of all requests, feature-major.
EXPORTED_BOTH_WAYS void sharded_infer_merge_uniform(const sharded_infer::Uniform* uniform);
}
