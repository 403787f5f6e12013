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
// these. Rows are fetched some ids ahead (prefetch.h), across bags and features, since almost every
// row is far from the one before. Where some have been changed, the addresses of all are found
// before that (lookup_rows.inc).
#pragma once
#include "row_overlay.h"

namespace sharded_infer {

struct Feature {
  const std::uint8_t* rows;  // of its table
  std::int64_t row_bytes;
  std::int64_t dim;
  std::int64_t column;        // of the output
  std::int32_t mean;          // else sum
  const RowOverlay* overlay;  // changed rows of its table, or null

  const std::uint8_t* row_of(std::int64_t id) const {
    if (overlay != nullptr)
      if (const std::uint8_t* changed = overlay->find(id)) return changed;
    return rows + id * row_bytes;
  }
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

}  // namespace sharded_infer

// The caller has checked the ids, the lengths and that the machine has the instruction set.
extern "C" __attribute__((visibility("default"))) void sharded_infer_lookup(
    std::int32_t instruction_set, const sharded_infer::Lookup* lookup);
