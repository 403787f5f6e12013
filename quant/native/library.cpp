// The C interface of the encoder, which Python calls through ctypes (without the GIL).
#include "encode.h"

using sharded_infer::Encoding;

namespace {
enum InstructionSet : std::int32_t { kBaseline = 0, kAvx2 = 1, kAvx512 = 2 };
}

#define EXPORTED __attribute__((visibility("default")))

extern "C" {

// Whether this machine has an instruction set: 0 the compiler's baseline, 1 AVX2, 2 AVX-512.
EXPORTED std::int32_t sharded_infer_has(std::int32_t instruction_set) {
  if (instruction_set == kBaseline) return 1;
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("f16c");
  if (instruction_set == kAvx2) return avx2;
  if (instruction_set == kAvx512)
    return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
#endif
  return 0;
}

// Encodes rows; see encode.h. The caller has checked the instruction set, dim and bits.
EXPORTED std::int64_t sharded_infer_encode(std::int32_t instruction_set,
                                           const Encoding* encoding, std::int32_t* refusal) {
#if defined(__x86_64__)
  if (instruction_set == kAvx512) return sharded_infer::encode_avx512(*encoding, refusal);
  if (instruction_set == kAvx2) return sharded_infer::encode_avx2(*encoding, refusal);
#endif
  return sharded_infer::encode_baseline(*encoding, refusal);
}
}
