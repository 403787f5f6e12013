#include "lookup.h"
#include "prefetch.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>
#if defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace sharded_infer {
namespace {
#include "lanes_baseline.inc"
#include "lookup_rows.inc"
}  // namespace

void lookup_baseline(const Lookup& lookup) { run(lookup); }

}  // namespace sharded_infer
