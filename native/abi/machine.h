// The processor, and what code is compiled for.
#pragma once
#include <cstdint>

#include "abi/exported.h"

namespace sharded_infer {

// The compiler's baseline is SSE2 on x86-64 and NEON on 64-bit ARM.
enum InstructionSet : std::int32_t { kBaseline = 0, kAvx2 = 1, kAvx512 = 2 };

}  // namespace sharded_infer

// Features of the processor, as bits of `ProcessorFeature` of base/processor.h.
extern "C" {
EXPORTED std::uint32_t sharded_infer_features();
}
