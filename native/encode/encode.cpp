// The encoder on each instruction set, which Python calls through ctypes (without the GIL).
#include "abi/encode.h"

#include <cmath>
#include <cstring>

#define SHARDED_INFER_KERNELS "encode/encode_rows.inc"
#include "base/each_instruction_set.inc"

extern "C" std::int64_t sharded_infer_encode(std::int32_t instruction_set,
                                             const sharded_infer::Encoding* encoding,
                                             sharded_infer::Refusal* refusal) {
  return SHARDED_INFER_FOR(instruction_set, encode(*encoding, refusal));
}
