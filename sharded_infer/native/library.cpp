// The C interface of the merge, which Python calls through ctypes.
#include "merge.h"

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
}
