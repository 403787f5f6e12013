// A matrix product with constant weights, and what follows it, in one pass.
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

#include "dense.h"

namespace sharded_infer {

enum Factors : std::int32_t { kFloats = 0, kBfloatPairs = 1, kByteQuads = 2 };

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
  std::int32_t factors;  // Factors; bytes are unsigned in x, signed in weight
  std::int32_t relu;
  DenseStep step;  // of all columns; its factor is not read; poison may be null
};

#if defined(__x86_64__)
void product_avx2(const Product& product);    // fp32 and bytes
void product_avx512(const Product& product);  // bf16 with its BF16 instructions, bytes with VNNI
#endif

}  // namespace sharded_infer
