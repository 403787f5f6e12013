#if defined(__x86_64__)
#include "encode.h"

#include <cmath>
#include <cstring>
#include <immintrin.h>

#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx2,f16c,fma,prefer-vector-width=512")

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
#endif
