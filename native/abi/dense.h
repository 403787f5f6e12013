// Steps between two matrix products of a tower, in one pass over memory.
//
//     for each row, for each column:
//         x = values                            or values + first * factor (a cross of DCNv2)
//         out = x                               where it is wanted
//         low = bf16(x)                         or
//         low = clamp(round(x * inverse_scale[column] + zero_point), 0, 255)
//     poison = 0, or NaN where a number of the row's x is not finite
//
// Rounded half to even; what is not a number becomes 255, so the row's poison tells of it. On AVX2,
// AVX-512 and NEON the cross is fused, as in torch's addcmul; the scaling to bytes never is, so
// that they are the same everywhere.
#pragma once
#include <cstdint>

#include "abi/exported.h"

namespace sharded_infer {

enum Low : std::int32_t { kNothing = 0, kBfloats = 1, kBytes = 2 };

struct DenseStep {
  const float* values;         // [rows, width], as are all the others
  const float* first;          // null: no cross
  const void* factor;          // fp32 or bf16
  const float* inverse_scale;  // [width], for bytes
  float* out;                  // or null
  void* low;                   // bf16 or bytes, or null
  float* poison;               // [rows], with bytes
  std::int64_t rows;
  std::int64_t width;
  float zero_point;
  std::int32_t factor_bf16;
  std::int32_t low_kind;  // Low
};

}  // namespace sharded_infer

// The caller has checked that the machine has the instruction set.
extern "C" {
EXPORTED void sharded_infer_dense_step(std::int32_t instruction_set,
                                       const sharded_infer::DenseStep* step);
}
