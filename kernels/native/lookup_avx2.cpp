#if defined(__x86_64__)
#include "lookup.h"
#include "prefetch.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>
#include <immintrin.h>

#pragma GCC target("avx2,f16c,fma")

namespace sharded_infer {
namespace {
#include "lanes_avx2.inc"
#include "lanes_x86.inc"
#include "lookup_rows.inc"
}  // namespace

void lookup_avx2(const Lookup& lookup) { run(lookup); }

}  // namespace sharded_infer
#endif
