// Where the rows of an ordered table lie: 6 bits for each id. kernels/ids/row_places.py has the
// layout.
//
//     block: 16 first rows of 4 bytes; 4 bits of the classes of 256 ids, 4 words of 64 ids each
//
//     row(id) = first row of id's class in its block + ids before it in the block that have its
//     class
//
// A row may lie outside the table where the bytes are damaged; the caller looks.
#pragma once
#include "prefetch.h"

#include <cstdint>
#include <cstring>

namespace sharded_infer {

constexpr std::uint64_t kPlacedIds = 256;  // of a block
constexpr std::uint64_t kPlacesBytes = 192;
constexpr std::uint64_t kClassBits = 4, kClassWords = 4, kFirstRows = 16;

inline const std::uint8_t* block_of_places(const std::uint8_t* blocks, std::uint64_t id) {
  return blocks + id / kPlacedIds * kPlacesBytes;
}

// Ones of each byte, in each byte.
inline std::uint64_t ones_of_bytes(std::uint64_t word) {
  word -= word >> 1 & 0x5555555555555555u;
  word = (word & 0x3333333333333333u) + (word >> 2 & 0x3333333333333333u);
  return (word + (word >> 4)) & 0x0F0F0F0F0F0F0F0Fu;
}

inline std::uint32_t placed_row(const std::uint8_t* blocks, std::uint64_t id) {
  const std::uint8_t* const block = block_of_places(blocks, id);
  const std::uint64_t own = id % kPlacedIds / 64, bit = id % 64;
  std::uint64_t words[kClassBits][kClassWords], same[kClassWords];
  std::memcpy(words, block + 4 * kFirstRows, sizeof words);
  // Those before the id.
  for (std::uint64_t at = 0; at < kClassWords; ++at)
    same[at] = at < own ? ~std::uint64_t{0} : at == own ? (std::uint64_t{1} << bit) - 1 : 0;
  std::uint64_t of_class = 0;
  for (std::uint64_t number = 0; number < kClassBits; ++number) {
    const std::uint64_t set = words[number][own] >> bit & 1, flip = set - 1;
    of_class |= set << number;
    for (std::uint64_t at = 0; at < kClassWords; ++at) same[at] &= words[number][at] ^ flip;
  }
  std::uint64_t ones = 0;
  for (const std::uint64_t word : same) ones += ones_of_bytes(word);
  std::uint32_t first;
  std::memcpy(&first, block + 4 * of_class, 4);
  // At most 255.
  return first + static_cast<std::uint32_t>(ones * 0x0101010101010101u >> 56);
}

// Writes rows in place of ids below `placed`. Whether all of them lie in the table.
inline bool placed_rows(const std::uint8_t* blocks, std::uint64_t placed, std::uint64_t table_rows,
                        std::int64_t* ids, std::int64_t count) {
  constexpr std::int64_t kIdsAhead = 16;
  // Inlined at once: GCC leaves out calls of functions that only fetch.
  const auto start = [&](std::int64_t at) __attribute__((always_inline)) {
    const auto id = static_cast<std::uint64_t>(ids[at]);
    const std::uint8_t* const block = block_of_places(blocks, id < placed ? id : 0);
    for (std::uint64_t line = 0; line < kPlacesBytes; line += kLine)
      __builtin_prefetch(block + line);
  };
  for (std::int64_t at = 0; at < kIdsAhead && at < count; ++at) start(at);
  bool all_inside = true;
  for (std::int64_t at = 0; at < count; ++at) {
    if (at + kIdsAhead < count) start(at + kIdsAhead);
    const auto id = static_cast<std::uint64_t>(ids[at]);
    if (id >= placed) continue;
    const std::uint32_t row = placed_row(blocks, id);
    all_inside &= row < table_rows;
    ids[at] = row;
  }
  return all_inside;
}

}  // namespace sharded_infer
