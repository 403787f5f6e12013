#if defined(__x86_64__)
#include "../../kernels/native/target.h"
#include "encode.h"

#include <cmath>
#include <cstring>
#include <immintrin.h>

SHARDED_INFER_BEGIN_TARGET(SHARDED_INFER_AVX512)

namespace sharded_infer {
namespace {
#include "../../kernels/native/lanes_avx512.inc"
#include "../../kernels/native/lanes_x86.inc"
#include "encode_rows.inc"
}  // namespace

std::int64_t encode_avx512(const Encoding& encoding, std::int32_t* refusal) {
  return encode(encoding, refusal);
}

}  // namespace sharded_infer

SHARDED_INFER_END_TARGET
#endif
