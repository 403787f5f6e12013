// The C interface of the encoder, which Python calls through ctypes (without the GIL).
#include "../../kernels/native/instruction_sets.h"
#include "encode.h"

using sharded_infer::Encoding;

#define EXPORTED __attribute__((visibility("default")))

extern "C" {

// Encodes rows; see encode.h. The caller has checked the instruction set, dim and bits.
EXPORTED std::int64_t sharded_infer_encode(std::int32_t instruction_set, const Encoding* encoding,
                                           std::int32_t* refusal) {
#if defined(__x86_64__)
  if (instruction_set == sharded_infer::kAvx512)
    return sharded_infer::encode_avx512(*encoding, refusal);
  if (instruction_set == sharded_infer::kAvx2)
    return sharded_infer::encode_avx2(*encoding, refusal);
#endif
  return sharded_infer::encode_baseline(*encoding, refusal);
}
}
