// The ids that a part of a lookup reads of a group's bags.
#pragma once
#include <vector>

#include "abi/lookup_run.h"

namespace sharded_infer {

// Ids of a part: for each row of `lengths` [entries, bags], those of its bags one after another.
template <class Id, class Weight>
struct Arrays {
  Id* values;
  Id* lengths;
  Weight* weights;  // or null
};
using Ids = Arrays<const std::int64_t, const float>;
using OwnIds = Arrays<std::int64_t, float>;

// First id of each feature, and the end of the last.
std::vector<std::int64_t> first_ids(const LookupGroup& group);

// Chooses a part's ids: `to` receives those that are not adjacent features'.
LookupChosen choose(const LookupGroup& group, const LookupPart& part,
                    const std::vector<std::int64_t>& firsts, const OwnIds& to);

}  // namespace sharded_infer
