// Bags of a batch in the order of a device's features, with 4-byte offsets.
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "abi/device_bags.h"

using sharded_infer::DeviceBags;
using sharded_infer::SourceGroup;

extern "C" void sharded_infer_write_bags(const SourceGroup* groups, std::int64_t count,
                                         const std::int64_t* group_of, const std::int64_t* rows,
                                         const DeviceBags* bags) {
  const DeviceBags& to = *bags;
  // The first id of each row of each group.
  std::vector<std::vector<std::int64_t>> firsts(count);
  for (std::int64_t number = 0; number < count; ++number) {
    const SourceGroup& group = groups[number];
    std::int64_t first = 0;
    for (std::int64_t row = 0; row < group.features; ++row) {
      firsts[number].push_back(first);
      const std::int64_t* lengths = group.lengths + row * group.bags;
      first = std::accumulate(lengths, lengths + group.bags, first);
    }
  }
  std::int64_t end = 0;
  std::int32_t* offsets = to.offsets;
  *offsets++ = 0;
  for (std::int64_t feature = 0; feature < to.features; ++feature) {
    const std::int64_t begin = end;
    std::int64_t bag_count = 0;
    if (group_of[feature] >= 0) {
      const SourceGroup& group = groups[group_of[feature]];
      const std::int64_t* lengths = group.lengths + rows[feature] * group.bags;
      bag_count = group.bags;
      for (std::int64_t bag = 0; bag < bag_count; ++bag) {
        end += lengths[bag];
        offsets[bag] = static_cast<std::int32_t>(end);
      }
      const std::int64_t first = firsts[group_of[feature]][rows[feature]];
      const std::int64_t* values = group.values + first;
      if (to.id_bytes == 4) {
        std::int32_t* target = static_cast<std::int32_t*>(to.values) + begin;
        for (std::int64_t id = 0; id < end - begin; ++id)
          target[id] = static_cast<std::int32_t>(values[id]);
      } else {
        std::copy_n(values, end - begin, static_cast<std::int64_t*>(to.values) + begin);
      }
      if (to.weights != nullptr && group.weights != nullptr)
        std::copy_n(group.weights + first, end - begin, to.weights + begin);
      else if (to.weights != nullptr)
        std::fill_n(to.weights + begin, end - begin, 1.0f);
    }
    std::fill(offsets + bag_count, offsets + to.bucket, static_cast<std::int32_t>(end));
    offsets += to.bucket;
  }
}
