#if defined(__x86_64__)
#include "dense.h"
#include "target.h"

#include <cmath>
#include <cstring>
#include <vector>
#include <immintrin.h>

SHARDED_INFER_BEGIN_TARGET(SHARDED_INFER_AVX512)

namespace sharded_infer {
namespace {
#include "lanes_avx512.inc"
#include "lanes_x86.inc"
#include "dense_rows.inc"
}  // namespace

void dense_step_avx512(const DenseStep& step) { run(step); }

}  // namespace sharded_infer

SHARDED_INFER_END_TARGET
#endif
