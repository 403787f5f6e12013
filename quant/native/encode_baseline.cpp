#include "encode.h"

#include <cmath>
#include <cstring>
#if defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace sharded_infer {
namespace {
#include "../../kernels/native/lanes_baseline.inc"
#include "encode_rows.inc"
}  // namespace

std::int64_t encode_baseline(const Encoding& encoding, std::int32_t* refusal) {
  return encode(encoding, refusal);
}

}  // namespace sharded_infer
