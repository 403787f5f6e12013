// The C interface of the merge, of the parts of lookups and of devices' inputs, which Python calls
// through ctypes.
#include "device_bags.h"
#include "merge.h"
#include "parts.h"

#define EXPORTED __attribute__((visibility("default")))

extern "C" {

// Finds what the merged groups need room for; see merge.h.
EXPORTED void sharded_infer_measure_merge(sharded_infer::Merge* merge) {
  sharded_infer::measure(*merge);
}

// Fills the merged groups; see merge.h.
EXPORTED void sharded_infer_merge(const sharded_infer::Merge* merge) {
  sharded_infer::copy(*merge);
}

EXPORTED void sharded_infer_merge_uniform(const sharded_infer::Uniform* merge) {
  sharded_infer::copy_uniform(*merge);
}

// Writes a batch's bags for a device; see device_bags.h.
EXPORTED void sharded_infer_write_bags(const sharded_infer::SourceGroup* groups, std::int64_t count,
                                       const std::int64_t* group_of, const std::int64_t* rows,
                                       const sharded_infer::DeviceBags* to) {
  sharded_infer::write_bags(groups, count, group_of, rows, *to);
}

// Selects the bags of ranks; see parts.h.
EXPORTED void sharded_infer_select_bags(const sharded_infer::Selection* selections,
                                        std::int64_t count, std::int64_t features,
                                        std::int64_t bags, const sharded_infer::BagArrays* from,
                                        const sharded_infer::BagArrays* to,
                                        sharded_infer::Kept* kept) {
  sharded_infer::select_bags(selections, count, features, bags, *from, *to, kept);
}

// Writes a rank's numbers; see parts.h.
EXPORTED std::int64_t sharded_infer_write_runs(const sharded_infer::Matrix* found,
                                               const std::int64_t* repeats,
                                               const sharded_infer::ColumnRun* runs,
                                               std::int64_t run_count,
                                               const sharded_infer::Matrix* pooled) {
  return sharded_infer::write_part({*found, runs, run_count}, repeats, *pooled);
}

// Writes ranks' numbers; see parts.h.
EXPORTED std::int64_t sharded_infer_write_parts(const sharded_infer::Part* parts,
                                                std::int64_t count, const std::int64_t* repeats,
                                                const sharded_infer::Matrix* pooled) {
  return sharded_infer::write_parts(parts, count, repeats, *pooled);
}

// Divides sums by bags' lengths; see parts.h.
EXPORTED std::int64_t sharded_infer_divide_means(const std::int64_t* lengths, std::int64_t bags,
                                                 const std::int64_t* repeats,
                                                 const sharded_infer::Mean* means,
                                                 std::int64_t mean_count,
                                                 const sharded_infer::Matrix* pooled) {
  return sharded_infer::divide_means(lengths, bags, repeats, means, mean_count, *pooled);
}
}
