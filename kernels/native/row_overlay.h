// Rows that stand in front of a table's own: one bit a row says whether it has been changed.
//
//     changed:  [rows / 64] bits, whose lines of 512 begin at multiples of 64 bytes
//     before:   [rows / 512] changed rows in all lines before each
//     rows:     [changed rows] where each lies, in the order of their ids
#pragma once
#include <cstdint>

namespace sharded_infer {

constexpr std::int64_t kWordRows = 64, kLineRows = 512;

// As a caller in Python fills it.
struct RowOverlay {
  const std::uint64_t* changed;
  const std::uint32_t* before;
  const std::uint8_t* const* rows;
  std::int64_t first_row;  // of the table, where ids begin

  const std::uint64_t* word_of(std::int64_t id) const { return changed + (first_row + id) / kWordRows; }

  // Where the changed row of an id lies; null if it is as it was.
  const std::uint8_t* find(std::int64_t id) const {
    const std::int64_t row = first_row + id;
    const std::uint64_t word = changed[row / kWordRows], bit = std::uint64_t{1} << row % kWordRows;
    if ((word & bit) == 0) return nullptr;
    std::int64_t rank = before[row / kLineRows] + __builtin_popcountll(word & (bit - 1));
    for (std::int64_t at = row / kLineRows * (kLineRows / kWordRows); at < row / kWordRows; ++at)
      rank += __builtin_popcountll(changed[at]);
    return rows[rank];
  }
};

}  // namespace sharded_infer
