// Pooled lookups on each instruction set.
#include "row_overlay.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/prefetch.h"

#define SHARDED_INFER_KERNELS "lookup/lookup_rows.inc"
#include "base/each_instruction_set.inc"

extern "C" void sharded_infer_lookup(std::int32_t instruction_set,
                                     const sharded_infer::Lookup* lookup) {
  SHARDED_INFER_FOR(instruction_set, run(*lookup));
}
