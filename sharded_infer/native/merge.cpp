// See merge.h.
#include "merge.h"

#include <cstring>
#include <vector>

#include <cstring>

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

void measure(Merge& merge) {
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

void copy(const Merge& merge) {
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

void copy_uniform(const Uniform& merge) {
  Group out = merge.out;
  std::vector<std::int64_t> done(merge.requests, 0);  // ids of each request's features so far
  for (std::int64_t feature = 0; feature < merge.features; ++feature) {
    for (std::int64_t request = 0; request < merge.requests; ++request) {
      const std::int64_t* part = merge.parts + 4 * request;
      const std::int64_t bags = part[3];
      const auto* lengths = reinterpret_cast<const std::int64_t*>(part[0]) + feature * bags;
      std::int64_t count = 0;
      for (std::int64_t bag = 0; bag < bags; ++bag) {
        out.lengths[bag] = lengths[bag];
        count += lengths[bag];
      }
      out.lengths += bags;
      const std::int64_t first = done[request];
      const auto* values = reinterpret_cast<const std::int64_t*>(part[1]) + first;
      std::memcpy(out.values, values, count * sizeof(std::int64_t));
      out.values += count;
      if (out.weights != nullptr) {
        const auto* weights = reinterpret_cast<const float*>(part[2]) + first;
        std::memcpy(out.weights, weights, count * sizeof(float));
        out.weights += count;
      }
      done[request] = first + count;
    }
  }
}

}  // namespace sharded_infer
