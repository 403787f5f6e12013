#if defined(__x86_64__)
#include "product.h"
#include "base/target.h"

#include <cstring>
#include <immintrin.h>

SHARDED_INFER_BEGIN_TARGET(SHARDED_INFER_AVX512)

namespace sharded_infer {
namespace {
#include "base/lanes_avx512.inc"
#include "base/lanes_x86.inc"
#include "dense_rows.inc"

constexpr std::int64_t kRows = 6;   // of a tile: its sums take 24 of the 32 registers
constexpr std::int64_t kPanel = 4;  // registers of columns
constexpr std::int64_t kColumns = kPanel * kLanes;

// In assembler: what GCC 12 makes of the intrinsics copies each sum twice.
template <Factors kFactors>
[[gnu::always_inline]] inline void add_product(__m512& sum, __m512 x, __m512 weight) {
  if constexpr (kFactors == Factors::kFp32) sum = _mm512_fmadd_ps(x, weight, sum);
  if constexpr (kFactors == Factors::kBf16)
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(x), "v"(weight));
  if constexpr (kFactors == Factors::kBytes)
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(x), "v"(weight));
}

template <Factors kFactors, int rows, int registers>
[[gnu::always_inline]] inline void add_group(__m512 (&sums)[rows][registers],
                                             const std::uint8_t* weight, const std::uint8_t* x,
                                             std::int64_t stride, std::int64_t bytes) {
  __m512 columns[registers];
#pragma GCC unroll 4
  for (int j = 0; j < registers; ++j) columns[j] = _mm512_loadu_ps(weight + 64 * j);
#pragma GCC unroll 6
  for (int i = 0; i < rows; ++i) {
    std::int32_t group = 0;
    std::memcpy(&group, x + i * stride, bytes);
    const __m512 all_x = _mm512_castsi512_ps(_mm512_set1_epi32(group));
#pragma GCC unroll 4
    for (int j = 0; j < registers; ++j) add_product<kFactors>(sums[i][j], all_x, columns[j]);
  }
}

// The sums of some rows and of 16 columns a register.
template <Factors kFactors, int rows, int registers>
void sum_tile(const Product& product, std::int64_t row, std::int64_t column, float* to) {
  __m512 sums[rows][registers];
#pragma GCC unroll 6
  for (int i = 0; i < rows; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < registers; ++j) sums[i][j] = _mm512_setzero_ps();
  const std::int64_t stride = product.row_bytes, groups = stride / 4, rest = stride % 4;
  const std::uint8_t* x = product.x + row * stride;
  const std::uint8_t* weight = product.weight + column * (groups + (rest != 0)) * 4;
  for (std::int64_t group = 0; group < groups; ++group, x += 4, weight += 64 * registers)
    add_group<kFactors>(sums, weight, x, stride, 4);
  if (rest) add_group<kFactors>(sums, weight, x, stride, rest);
#pragma GCC unroll 6
  for (int i = 0; i < rows; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < registers; ++j)
      _mm512_storeu_ps(to + i * kColumns + j * kLanes, sums[i][j]);
}

using SumTile = void (*)(const Product&, std::int64_t, std::int64_t, float*);

template <Factors kFactors, int registers>
constexpr SumTile kTiles[] = {sum_tile<kFactors, 1, registers>, sum_tile<kFactors, 2, registers>,
                              sum_tile<kFactors, 3, registers>, sum_tile<kFactors, 4, registers>,
                              sum_tile<kFactors, 5, registers>, sum_tile<kFactors, 6, registers>};

template <Factors kFactors>
constexpr const SumTile* kTilesOf[] = {kTiles<kFactors, 1>, kTiles<kFactors, 2>,
                                       kTiles<kFactors, 3>, kTiles<kFactors, 4>};

template <Factors kFactors>
inline void sum_block(const Product& product, std::int64_t row, std::int64_t rows,
                      std::int64_t column, std::int64_t width, float* sums) {
  kTilesOf<kFactors>[(width + kLanes - 1) / kLanes - 1][rows - 1](product, row, column, sums);
}

inline Lanes from_integers(const float* sums, const std::int32_t* offset) {
  return Lanes{
      _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_loadu_si512(sums), _mm512_loadu_si512(offset)))};
}

#include "product_rows.inc"
}  // namespace

void product_avx512(const Product& product) {
  if (product.factors == Factors::kBytes) return multiply<Factors::kBytes>(product);
  if (product.factors == Factors::kBf16) return multiply<Factors::kBf16>(product);
  multiply<Factors::kFp32>(product);
}

}  // namespace sharded_infer

SHARDED_INFER_END_TARGET
#endif
