// Which instruction sets code is compiled for, and whether this machine has them.
#pragma once
#include <cstdint>

#include "processor.h"

namespace sharded_infer {

// The compiler's baseline is SSE2 on x86-64 and NEON on 64-bit ARM.
enum InstructionSet : std::int32_t { kBaseline = 0, kAvx2 = 1, kAvx512 = 2 };

inline bool has(std::int32_t instruction_set) {
  if (instruction_set == kBaseline) return true;
#if defined(__x86_64__)
  if (instruction_set == kAvx2) return processor().avx2;
  if (instruction_set == kAvx512) return processor().avx512;
#endif
  return false;
}

}  // namespace sharded_infer
