// The calls of a batch as one input; `merge_inputs` of sharded_infer/inputs/merge.py is the
// reference.
//
//   a feature keeps one bag a call if every call of several samples has one bag for all of them;
//   else it has a bag for each sample, and bags for all are repeated
#pragma once
#include "call.h"

namespace sharded_infer::call {

struct MergedInput {
  Layout layout{};
  std::vector<std::uint8_t> own;
  std::vector<std::int64_t> dense_at, dense_rows, sizes;
  std::vector<std::int64_t> memory;  // empty: that of the only call
  const std::int64_t* words = nullptr;
};

// There is one call at least, and all are of one route.
void merge(const std::vector<Call*>& calls, MergedInput& merged);

// The work of an input: its samples, and eighths of the positions of their sequences.
std::int64_t work_units(const Model& model, const Layout& layout, const std::uint8_t* own,
                        const std::int64_t* words);

}  // namespace sharded_infer::call
