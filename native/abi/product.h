// A matrix product with constant weights and the steps after it, in one pass.
//
//     for each row, for each column:
//         y = sum of x[row, k] * weight[column, k]     fp32, bf16 (summed in fp32) or bytes (in
//         int32) y = (y - offset[column]) * scale[column]     of bytes y = max(y + bias[column], 0)
//         + poison[row]   where they are given a dense step of y follows: see dense.h. y is its
//         values, or its factor in a cross
//
// Sums go over k in ascending groups (G below): they depend neither on the number of rows nor on a
// row's place. NaN stays NaN through the maximum. There is no state for a number of rows, so that
// any number of rows is run as it is.
#pragma once
#include <cstdint>

#include "abi/dense.h"
#include "abi/exported.h"

namespace sharded_infer {

enum class Factors : std::int32_t { kFp32, kBf16, kBytes };

struct Product {
  const std::uint8_t* x;  // [rows, row_bytes]
  // [width / P][row_bytes / G][P][G bytes], padded with zeros: AVX-512 P = 64, the last of 16 to 64
  // columns, G = 4; AVX2 P = 16, G = 4 of fp32, 2 of bytes.
  const std::uint8_t* weight;
  const std::int32_t* offset;  // [width], with bytes; as scale and bias padded to a multiple of 16
  const float* scale;          // [width], with bytes
  const float* bias;           // [width], or null
  const float* poison;         // [rows], or null
  std::int64_t row_bytes;
  Factors factors;  // bytes are unsigned in x, signed in weight
  std::int32_t relu;
  DenseStep step;  // of all columns; its factor is not read; poison may be null
};

}  // namespace sharded_infer

// The caller has checked that the machine has the instructions.
extern "C" {
EXPORTED void sharded_infer_product(std::int32_t instruction_set,
                                    const sharded_infer::Product* product);
}
