#if defined(__x86_64__)
#include "lookup.h"
#include "prefetch.h"
#include "target.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>
#include <immintrin.h>

SHARDED_INFER_BEGIN_TARGET(SHARDED_INFER_AVX2)

namespace sharded_infer {
namespace {
#include "lanes_avx2.inc"
#include "lanes_x86.inc"
#include "lookup_rows.inc"
}  // namespace

void lookup_avx2(const Lookup& lookup) { run(lookup); }

}  // namespace sharded_infer

SHARDED_INFER_END_TARGET
#endif
