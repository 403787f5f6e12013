// The inputs of calls, feature by feature.
#pragma once
#include <vector>

#include "call.h"

namespace sharded_infer::call {

// The rest of a call's group, from the next of its features on.
struct Source {
  const std::int64_t* lengths;
  const std::int64_t* values;
  const float* weights;  // null: all are 1
};

inline float* floats(std::int64_t* words) { return reinterpret_cast<float*>(words); }
inline const float* floats(const std::int64_t* words) {
  return reinterpret_cast<const float*>(words);
}

inline Source source_of(const std::int64_t* words, const Group& group) {
  return {words + group.lengths_at, words + group.values_at,
          group.weighted ? floats(words + group.weights_at) : nullptr};
}

// Bags of a feature in a call's group.
inline std::int64_t bags_of(const Call& call, bool single) { return single ? 1 : call.samples(); }

inline void advance(Source& source, std::int64_t bags, std::int64_t ids) {
  source.lengths += bags;
  source.values += ids;
  if (source.weights != nullptr) source.weights += ids;
}

// Calls `visit(feature, call, its source, bags, ids)`, feature by feature.
template <class Visit>
void each_feature(const std::vector<Call*>& calls, Visit visit) {
  std::vector<Source> sources;
  sources.reserve(2 * calls.size());
  for (const Call* call : calls)
    for (const Group& group : call->layout.groups)
      sources.push_back(source_of(call->words.get(), group));
  for (std::size_t feature = 0; feature < calls[0]->own.size(); ++feature) {
    for (std::size_t at = 0; at < calls.size(); ++at) {
      const bool single = !calls[at]->own[feature];
      Source& source = sources[2 * at + single];
      const std::int64_t bags = bags_of(*calls[at], single);
      std::int64_t ids = 0;
      for (std::int64_t bag = 0; bag < bags; ++bag) ids += source.lengths[bag];
      visit(feature, *calls[at], source, bags, ids);
      advance(source, bags, ids);
    }
  }
}

}  // namespace sharded_infer::call
