// Bags of a batch in the order of a device's features, with 4-byte offsets.
#pragma once
#include <cstdint>

#include "abi/exported.h"

namespace sharded_infer {

// A group of a batch; one bag for each feature is that of the first sample only.
struct SourceGroup {
  const std::int64_t* lengths;  // [features, bags]
  const std::int64_t* values;
  const float* weights;  // or null
  std::int64_t features;
  std::int64_t bags;
};

// Bags for a device; feature-major, `bucket` bags for each feature, of which missing ones are
// empty.
struct DeviceBags {
  std::int64_t features;
  std::int64_t bucket;
  std::int32_t* offsets;  // [features * bucket + 1]
  void* values;
  std::int64_t id_bytes;  // 4 or 8
  float* weights;         // null: not written; 1 for groups without weights
};

}  // namespace sharded_infer

extern "C" {

// Writes the bags of feature f from row rows[f] of groups[group_of[f]]; a negative group has none.
EXPORTED void sharded_infer_write_bags(const sharded_infer::SourceGroup groups[],
                                       std::int64_t count, const std::int64_t group_of[],
                                       const std::int64_t rows[],
                                       const sharded_infer::DeviceBags* bags);
}
