// Instruction sets that code is compiled for.
#pragma once
#include <cstdint>

namespace sharded_infer {

// The compiler's baseline is SSE2 on x86-64 and NEON on 64-bit ARM.
enum InstructionSet : std::int32_t { kBaseline = 0, kAvx2 = 1, kAvx512 = 2 };

}  // namespace sharded_infer
