#include "dense.h"

#include <cmath>
#include <cstring>
#include <vector>
#if defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace sharded_infer {
namespace {
#include "lanes_baseline.inc"
#include "dense_rows.inc"
}  // namespace

void dense_step_baseline(const DenseStep& step) { run(step); }

}  // namespace sharded_infer
