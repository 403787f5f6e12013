// Pooled lookups of stored rows.
//
//     for each feature, for each sample:
//         out = 0
//         for each id of the bag:
//             out += bias + scale * level      integer rows; weight multiplies scale and bias
//             out += weight * number           other rows
//         a mean is the sum times 1 / length
//         out is written to the sample's row, at the feature's column
//
// Sums and products are fused and in the order of the ids, as in FBGEMM's kernel: its bits are
// these. Rows are fetched some ids ahead (base/prefetch.h), across bags and features, since almost
// every row is far from the one before. Where some have been changed, the addresses of all are
// found before that (lookup/lookup_rows.inc).
#pragma once
#include <cstdint>

#include "abi/exported.h"

namespace sharded_infer {

constexpr std::int64_t kWordRows = 64, kLineRows = 512;

// Rows that stand in front of a table's own: one bit a row says that it has been changed. So few
// bits of groups stay in the second cache, which rows pass through, where the bits of all rows
// would not.
struct RowOverlay {
  const std::uint64_t* groups;      // [rows / 2^group_shift] bits: a row of it has been changed
  const std::uint64_t* changed;     // [rows / 64] bits; lines of 512 are at multiples of 64 bytes
  const std::uint32_t* before;      // [rows / 512] changed rows in all lines before each
  const std::uint8_t* const* rows;  // [changed rows] addresses, in the order of their ids
  std::int64_t group_shift;
  std::int64_t first_row;  // of the table, where ids begin

  bool group_has_changes(std::int64_t id) const;

  // Fetches what `place_of` reads.
  void fetch_bits(std::int64_t id) const;

  // Where the address of an id's changed row stands; null if the row is as it was.
  const std::uint8_t* const* place_of(std::int64_t id) const;

  // The changed row of an id; null if it is as it was. Of many ids, see lookup/lookup_rows.inc.
  const std::uint8_t* find(std::int64_t id) const;
};

struct Feature {
  const std::uint8_t* rows;  // of its table
  std::int64_t row_bytes;
  std::int64_t dim;
  std::int64_t column;        // of the output
  std::int32_t mean;          // else sum
  const RowOverlay* overlay;  // changed rows of its table, or null

  const std::uint8_t* row_of(std::int64_t id) const;
};

enum Format : std::int32_t { kFp32, kFp16, kBf16, kFp8, kInt8, kInt4, kInt2 };

struct Lookup {
  const Feature* features;  // [feature_count], in the order of their values
  std::int64_t feature_count;
  std::int64_t batch;
  const std::int64_t* values;   // ids; every one is inside its table
  const std::int64_t* lengths;  // [feature_count, batch]
  const float* weights;         // of the ids, or null
  void* out;                    // [batch, stride], fp32 or bf16
  std::int64_t stride;          // elements between samples
  std::int32_t format;
  std::int32_t out_bf16;  // else fp32
  const std::uint8_t* const*
      places;  // where the row of each id lies, changed or not; null: in the features' tables
};

// `sharded_infer_lookup` of the kernels' library.
using RunLookup = void (*)(std::int32_t instruction_set, const Lookup* lookup);

}  // namespace sharded_infer

extern "C" {

// The caller has checked the ids, the lengths and that the machine has the instruction set.
EXPORTED void sharded_infer_lookup(std::int32_t instruction_set,
                                   const sharded_infer::Lookup* lookup);

// Copies rows one after another, fetched ahead as a lookup does, over the same memory again and
// again: what memory allows where nothing is computed.
EXPORTED void sharded_infer_gather(const std::uint8_t rows[], std::int64_t row_bytes,
                                   const std::int64_t ids[], std::int64_t count, std::uint8_t out[],
                                   std::int64_t out_rows);

// 1: lengths sum to the ids, and every id lies inside its feature's table.
EXPORTED std::int32_t sharded_infer_inside(const std::int64_t values[],
                                           const std::int64_t lengths[], const std::int64_t rows[],
                                           std::int64_t features, std::int64_t batch,
                                           std::int64_t ids);
}
