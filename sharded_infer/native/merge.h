// Merging requests' bags into one batch: only copying, driven by how each request is laid out.
//
//   for each request: where the bags and ids of each feature begin in the source
//   for each merged group, for each of its features, for each request:
//       shared by the request's samples, and so in the merged group: copy its one bag
//       shared by the request's samples, but not in the merged group: copy it for every sample
//       otherwise: copy the bags of all its samples
//
// The source is all requests' groups one after another, each feature-major.
#pragma once
#include <cstdint>

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
  const std::int64_t*
      parts;  // [requests, 4]: addresses of lengths, values, weights; bags a feature
  Group out;
};

// Copies one group of all requests, feature-major.
void copy_uniform(const Uniform& merge);

// Finds where everything is, and how many ids each merged group has.
void measure(Merge& merge);

// Copies; `measure` must have run on the same structure.
void copy(const Merge& merge);

}  // namespace sharded_infer
