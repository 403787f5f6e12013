#include "chosen_ids.h"

#include <algorithm>
#include <numeric>

#include "base/id_index.h"

namespace sharded_infer {
namespace {

// Rows of a feature's bags that are not looked up again for each sample.
std::int64_t saved_rows(const LookupGroup& group, const std::int64_t* lengths) {
  if (group.repeats == nullptr && group.bags == group.samples * group.places) return 0;
  std::int64_t saved = 0;
  for (std::int64_t bag = 0; bag < group.bags; ++bag) {
    const std::int64_t samples =
        group.repeats == nullptr ? group.samples : group.repeats[bag / group.places];
    saved += lengths[bag] * (samples - 1);
  }
  return saved;
}

// Copies the ids of a feature that `take` keeps, as it changes them; returns the end of the copies.
template <class Take>
std::int64_t copy_taken(const LookupGroup& group, std::int64_t feature, std::int64_t at,
                        const OwnIds& to, std::int64_t* to_lengths, std::int64_t kept,
                        const Take& take) {
  const std::int64_t* lengths = group.lengths + feature * group.bags;
  for (std::int64_t bag = 0; bag < group.bags; ++bag) {
    const std::int64_t before = kept;
    for (const std::int64_t end = at + lengths[bag]; at < end; ++at) {
      std::int64_t id = group.values[at];
      if (!take(id)) continue;
      if (group.weights != nullptr) to.weights[kept] = group.weights[at];
      to.values[kept++] = id;
    }
    to_lengths[bag] = kept - before;
  }
  return kept;
}

std::int64_t copy_all(const LookupGroup& group, std::int64_t feature, std::int64_t first,
                      std::int64_t end, const OwnIds& to, std::int64_t* to_lengths,
                      std::int64_t kept) {
  std::copy_n(group.lengths + feature * group.bags, group.bags, to_lengths);
  std::copy(group.values + first, group.values + end, to.values + kept);
  if (group.weights != nullptr)
    std::copy(group.weights + first, group.weights + end, to.weights + kept);
  return kept + end - first;
}

}  // namespace

std::vector<std::int64_t> first_ids(const LookupGroup& group) {
  std::vector<std::int64_t> firsts(static_cast<std::size_t>(group.features) + 1);
  for (std::int64_t feature = 0; feature < group.features; ++feature) {
    const std::int64_t* lengths = group.lengths + feature * group.bags;
    firsts[feature + 1] = std::accumulate(lengths, lengths + group.bags, firsts[feature]);
  }
  return firsts;
}

LookupChosen choose(const LookupGroup& group, const LookupPart& part,
                    const std::vector<std::int64_t>& firsts, const OwnIds& to) {
  LookupChosen chosen{};
  if (part.is_adjacent) chosen.first_id = firsts[part.entries[0].feature];
  for (std::int64_t number = 0; number < part.entry_count; ++number) {
    const LookupEntry& entry = part.entries[number];
    const std::int64_t first = firsts[entry.feature], end = firsts[entry.feature + 1];
    const std::uint64_t from = entry.first, span = entry.last - entry.first;
    const std::int64_t before = chosen.ids;
    const std::int64_t* lengths = group.lengths + entry.feature * group.bags;
    std::int64_t* const to_lengths = part.is_adjacent ? nullptr : to.lengths + number * group.bags;
    if (part.is_adjacent) {
      chosen.ids += end - first;
    } else if (part.ids == kIdsOfRows) {
      chosen.ids = copy_taken(group, entry.feature, first, to, to_lengths, before,
                              [from, span](std::int64_t& id) {
                                // A row below the range is a huge number without its sign.
                                id -= static_cast<std::int64_t>(from);
                                return static_cast<std::uint64_t>(id) <= span;
                              });
    } else if (part.ids == kIdsOfHashes) {
      chosen.ids = copy_taken(
          group, entry.feature, first, to, to_lengths, before, [from, span](std::int64_t id) {
            return hash_of_id(static_cast<std::uint64_t>(id), kPartitionSeed) - from <= span;
          });
    } else {
      chosen.ids = copy_all(group, entry.feature, first, end, to, to_lengths, before);
    }
    chosen.row_bytes += (chosen.ids - before) * entry.row_bytes;
    chosen.saved += saved_rows(group, part.is_adjacent ? lengths : to_lengths);
  }
  return chosen;
}

}  // namespace sharded_infer

using namespace sharded_infer;

extern "C" void sharded_infer_lookup_choose(const LookupGroup* group,
                                            const LookupPart* const* parts, std::int64_t count,
                                            std::int64_t* values, std::int64_t* lengths,
                                            float* weights, LookupChosen* chosen) {
  const std::vector<std::int64_t> firsts = first_ids(*group);
  std::int64_t kept = 0;
  for (std::int64_t number = 0; number < count; ++number) {
    const LookupPart& part = *parts[number];
    chosen[number] =
        choose(*group, part, firsts,
               {values + kept, lengths, weights == nullptr ? nullptr : weights + kept});
    if (part.is_adjacent) continue;
    chosen[number].first_id = kept;
    kept += chosen[number].ids;
    lengths += part.entry_count * group->bags;
  }
}
