// Rows of numbers to rows of few-bit integers, with the errors that this makes.
//
//     for each row:
//         low, high = its minimum and maximum; a row that is not finite is refused
//         with clip: the range inside [low, high] whose squared error is least
//         level = round_half_even((x - bias) / scale), clamped to [0, 2^bits - 1]
//         stored = fp16 scale, fp16 bias, levels packed, the first in the lowest bits
//
// The formulas and their sources are those of tests/reference/row_encoding.py, the reference: the
// bytes are equal (of clipped rows, wherever two ranges do not tie). Every instruction set gives
// the same bytes and errors: sums have 16 lanes everywhere, added in one order, and products are
// never contracted with sums.
#pragma once
#include <cstdint>

#include "abi/exported.h"

namespace sharded_infer {

struct Encoding {
  const float* rows;  // [count, dim]
  std::int64_t count;
  std::int64_t dim;       // 1 to kMaxDim
  std::int32_t bits;      // 8, 4 or 2
  std::int32_t clip;      // search the range; bits 4 and 2 only
  std::uint8_t* stored;   // [count, 4 + ceil(dim * bits / 8)]
  float* squared_errors;  // [count], sums over a row, against the row as it is read back
  float* minmax_errors;   // [count], the same without clip
  float* squares;         // [count], sums of x^2
  float* max_errors;      // [count], largest |error|
};

constexpr std::int64_t kMaxDim = 8192;

// Why a row was refused.
enum class Refusal : std::int32_t { kNone, kNotFinite, kBeyondHalf };

}  // namespace sharded_infer

// Encodes rows until one is refused. Returns its index and sets *refusal, or count. The caller has
// checked dim, bits and that the machine has the instruction set.
extern "C" {
EXPORTED std::int64_t sharded_infer_encode(std::int32_t instruction_set,
                                           const sharded_infer::Encoding* encoding,
                                           sharded_infer::Refusal* refusal);
}
