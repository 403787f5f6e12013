// Merging a group of bags of several requests, feature after feature.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "abi/merge.h"

namespace sharded_infer {

// `weights` may be null.
inline void merge_bags(std::vector<BagSource> sources, std::int64_t features, std::int64_t* lengths,
                       std::int64_t* values, float* weights) {
  for (std::int64_t feature = 0; feature < features; ++feature) {
    for (BagSource& source : sources) {
      std::int64_t ids = 0;
      for (std::int64_t bag = 0; bag < source.bags; ++bag)
        ids += lengths[bag] = source.lengths[bag];
      lengths += source.bags;
      source.lengths += source.bags;
      values = std::copy_n(source.values, ids, values);
      source.values += ids;
      if (weights == nullptr) continue;
      if (source.weights == nullptr) {
        weights = std::fill_n(weights, ids, 1.0f);
      } else {
        weights = std::copy_n(source.weights, ids, weights);
        source.weights += ids;
      }
    }
  }
}

}  // namespace sharded_infer
