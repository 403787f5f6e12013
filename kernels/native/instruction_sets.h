// Which instruction sets code is compiled for, and whether this machine has them.
#pragma once
#include <cstdint>

namespace sharded_infer {

// The compiler's baseline is SSE2 on x86-64 and NEON on 64-bit ARM.
enum InstructionSet : std::int32_t { kBaseline = 0, kAvx2 = 1, kAvx512 = 2 };

inline bool has(std::int32_t instruction_set) {
  if (instruction_set == kBaseline) return true;
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("f16c");
  if (instruction_set == kAvx2) return avx2;
  if (instruction_set == kAvx512)
    return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
#endif
  return false;
}

}  // namespace sharded_infer
