// Rows that stand in front of a table's own: one bit a row says whether it has been changed.
//
//     groups:   [rows / 2^group_shift] bits: whether a row of the group has been changed. So few
//     that they stay in
//               the second cache, which rows pass through, where the bits of all rows would not
//     changed:  [rows / 64] bits, whose lines of 512 begin at multiples of 64 bytes
//     before:   [rows / 512] changed rows in all lines before each
//     rows:     [changed rows] where each lies, in the order of their ids
#pragma once
#include <cstdint>

namespace sharded_infer {

constexpr std::int64_t kWordRows = 64, kLineRows = 512;

// As a caller in Python fills it.
struct RowOverlay {
  const std::uint64_t* groups;
  const std::uint64_t* changed;
  const std::uint32_t* before;
  const std::uint8_t* const* rows;
  std::int64_t group_shift;
  std::int64_t first_row;  // of the table, where ids begin

  bool group_has_changes(std::int64_t id) const {
    return bit_of(groups, (first_row + id) >> group_shift);
  }

  // Fetches what `place_of` reads.
  void fetch_bits(std::int64_t id) const {
    __builtin_prefetch(changed + (first_row + id) / kWordRows);
    __builtin_prefetch(before + (first_row + id) / kLineRows);
  }

  // Where the address of an id's changed row stands; null if the row is as it was.
  const std::uint8_t* const* place_of(std::int64_t id) const {
    const std::int64_t row = first_row + id;
    if (!bit_of(changed, row)) return nullptr;
    const std::uint64_t below = (std::uint64_t{1} << row % kWordRows) - 1;
    std::int64_t rank =
        before[row / kLineRows] + __builtin_popcountll(changed[row / kWordRows] & below);
    for (std::int64_t at = row / kLineRows * (kLineRows / kWordRows); at < row / kWordRows; ++at)
      rank += __builtin_popcountll(changed[at]);
    return rows + rank;
  }

  // Where the changed row of an id lies; null if it is as it was. Of many ids, see
  // lookup_rows.inc.
  const std::uint8_t* find(std::int64_t id) const {
    const std::uint8_t* const* place = group_has_changes(id) ? place_of(id) : nullptr;
    return place == nullptr ? nullptr : *place;
  }

 private:
  static bool bit_of(const std::uint64_t* bits, std::int64_t at) {
    return (bits[at / kWordRows] >> at % kWordRows & 1) != 0;
  }
};

}  // namespace sharded_infer
