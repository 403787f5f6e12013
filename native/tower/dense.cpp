// Dense steps on each instruction set.
#include "abi/dense.h"

#include <cmath>
#include <cstring>
#include <vector>

#define SHARDED_INFER_KERNELS "tower/dense_rows.inc"
#include "base/each_instruction_set.inc"

extern "C" void sharded_infer_dense_step(std::int32_t instruction_set,
                                         const sharded_infer::DenseStep* step) {
  SHARDED_INFER_FOR(instruction_set, run(*step));
}
