#if defined(__x86_64__)
#include "dense.h"

#include <cmath>
#include <cstring>
#include <vector>
#include <immintrin.h>

#pragma GCC target("avx2,f16c,fma")

namespace sharded_infer {
namespace {
#include "lanes_avx2.inc"
#include "lanes_x86.inc"
#include "dense_rows.inc"
}  // namespace

void dense_step_avx2(const DenseStep& step) { run(step); }

}  // namespace sharded_infer
#endif
