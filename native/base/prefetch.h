// Fetching stored rows before they are needed.
#pragma once
#include <cstdint>

#include "processor.h"

namespace sharded_infer {

// Ids whose rows are fetched before they are needed. Measured on Zen 5 with rows of 132 bytes: 16
// leaves a third of the rate, 32 a tenth, 64 adds nothing.
constexpr std::int64_t kAhead = 48;
// The distance of lookups, which fetch kAtOnce rows at once. Measured on Zen 4 with rows of 132
// bytes in 2 MiB pages of a virtual machine: one row at a time has 0.6 of the rate, 8 at once 0.9,
// 96 rows ahead 1.03 times that of 48.
constexpr std::int64_t kFarAhead = 96, kAtOnce = 32, kOutputsAhead = 4;
constexpr std::int64_t kLine = 64;  // bytes of a cache line

// Which cache rows are fetched into. Intel's first cache has too few misses at a time for many rows
// of several lines, its second has more; on AMD's the first is up to a fifth faster.
inline bool fetches_into_first_cache() {
#if defined(__x86_64__)
  static const bool first = !processor().is_intel;
  return first;
#else
  return true;
#endif
}

// Inlined always: GCC leaves calls out that do nothing but fetch.
[[gnu::always_inline]] inline void fetch(const std::uint8_t* row, std::int64_t row_bytes,
                                         bool into_first) {
  if (into_first) {
    for (const std::uint8_t* line = row; line < row + row_bytes; line += kLine)
      __builtin_prefetch(line, 0, 3);
  } else {
    for (const std::uint8_t* line = row; line < row + row_bytes; line += kLine)
      __builtin_prefetch(line, 0, 2);
  }
}

}  // namespace sharded_infer
