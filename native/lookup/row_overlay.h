// Rows that have been changed; see abi/lookup.h.
#pragma once
#include "abi/lookup.h"

namespace sharded_infer {

inline bool bit_of(const std::uint64_t* bits, std::int64_t at) {
  return (bits[at / kWordRows] >> at % kWordRows & 1) != 0;
}

inline bool RowOverlay::group_has_changes(std::int64_t id) const {
  return bit_of(groups, (first_row + id) >> group_shift);
}

inline void RowOverlay::fetch_bits(std::int64_t id) const {
  __builtin_prefetch(changed + (first_row + id) / kWordRows);
  __builtin_prefetch(before + (first_row + id) / kLineRows);
}

inline const std::uint8_t* const* RowOverlay::place_of(std::int64_t id) const {
  const std::int64_t row = first_row + id;
  if (!bit_of(changed, row)) return nullptr;
  const std::uint64_t below = (std::uint64_t{1} << row % kWordRows) - 1;
  std::int64_t rank =
      before[row / kLineRows] + __builtin_popcountll(changed[row / kWordRows] & below);
  for (std::int64_t at = row / kLineRows * (kLineRows / kWordRows); at < row / kWordRows; ++at)
    rank += __builtin_popcountll(changed[at]);
  return rows + rank;
}

inline const std::uint8_t* RowOverlay::find(std::int64_t id) const {
  const std::uint8_t* const* place = group_has_changes(id) ? place_of(id) : nullptr;
  return place == nullptr ? nullptr : *place;
}

inline const std::uint8_t* Feature::row_of(std::int64_t id) const {
  if (overlay != nullptr)
    if (const std::uint8_t* changed = overlay->find(id)) return changed;
  return rows + id * row_bytes;
}

}  // namespace sharded_infer
