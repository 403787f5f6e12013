#include "product.h"

#include "instruction_sets.h"
#include "target.h"

#if defined(__x86_64__)
#include <cstring>
#include <immintrin.h>

SHARDED_INFER_BEGIN_TARGET(SHARDED_INFER_AVX512)

namespace sharded_infer {
namespace {
#include "lanes_avx512.inc"
#include "lanes_x86.inc"
#include "dense_rows.inc"

constexpr std::int64_t kRows = 6;
constexpr std::int64_t kBlock = 24;    // of a tile: its sums take 24 of the 32 registers
constexpr std::int64_t kPanel = 4;   // registers of columns
constexpr std::int64_t kColumns = kPanel * kLanes;

// In assembler: what GCC 12 makes of the intrinsics copies each sum twice.
template <Factors kFactors>
[[gnu::always_inline]] inline void add_product(__m512& sum, __m512 x, __m512 weight) {
  if constexpr (kFactors == kFloats) sum = _mm512_fmadd_ps(x, weight, sum);
  if constexpr (kFactors == kBfloatPairs)
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(x), "v"(weight));
  if constexpr (kFactors == kByteQuads)
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(x), "v"(weight));
}

template <Factors kFactors, int rows, int registers>
[[gnu::always_inline]] inline void add_group(__m512 (&sums)[rows][registers], const std::uint8_t* weight,
                                             const std::uint8_t* x, std::int64_t stride,
                                             std::int64_t bytes) {
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
constexpr SumTile kTiles[] = {
    sum_tile<kFactors, 1, registers>, sum_tile<kFactors, 2, registers>,
    sum_tile<kFactors, 3, registers>, sum_tile<kFactors, 4, registers>,
    sum_tile<kFactors, 5, registers>, sum_tile<kFactors, 6, registers>};

template <Factors kFactors>
constexpr const SumTile* kTilesOf[] = {kTiles<kFactors, 1>, kTiles<kFactors, 2>,
                                       kTiles<kFactors, 3>, kTiles<kFactors, 4>};

// What lies between 16 of a row's sums and its dense step, fp32 but for sums of bytes.
template <Factors kFactors>
inline Lanes completed(const Product& product, Lanes y, Lanes poison, std::int64_t column,
                       __mmask16 mask) {
  if constexpr (kFactors == kByteQuads) {
    const __m512i offset = _mm512_maskz_loadu_epi32(mask, product.offset + column);
    const __m512i sum = _mm512_sub_epi32(_mm512_castps_si512(y.value), offset);
    y = Lanes{_mm512_cvtepi32_ps(sum)} * Lanes{_mm512_maskz_loadu_ps(mask, product.scale + column)};
  }
  if (product.bias) y = y + Lanes{_mm512_maskz_loadu_ps(mask, product.bias + column)};
  if (product.relu) y = larger(all(0.0f), y);  // the second where one is no number
  return product.poison ? y + poison : y;
}

template <Factors kFactors, bool kCross, Low kLow>
void finish(const Product& product, std::int64_t row, std::int64_t column, std::int64_t width,
            float* sums) {
  const Lanes poison = all(product.poison ? product.poison[row] : 0.0f);
  for (std::int64_t at = 0; at < width; at += kLanes) {
    const std::int64_t left = width - at;
    const __mmask16 mask = left < kLanes ? (1u << left) - 1 : 0xffff;
    store(sums + at, completed<kFactors>(product, load(sums + at), poison, column + at, mask));
  }
  const DenseStep& step = product.step;
  const std::int64_t at = row * step.width + column;
  const Columns columns = {kCross ? step.values + at : sums,
                           kCross ? step.first + at : nullptr,
                           sums,
                           kLow == kBytes ? step.inverse_scale + column : nullptr,
                           step.out ? step.out + at : nullptr,
                           low_at<kLow>(step.low, at)};
  const float spoiled = step_columns<kCross, false, kLow>(columns, width, step.zero_point);
  if (kLow == kBytes && step.poison) step.poison[row] += spoiled;
}

using Finish = void (*)(const Product&, std::int64_t, std::int64_t, std::int64_t, float*);

template <Factors kFactors, bool kCross>
Finish finish_of(std::int32_t low_kind) {
  if (low_kind == kBytes) return finish<kFactors, kCross, kBytes>;
  return low_kind == kBfloats ? finish<kFactors, kCross, kBfloats>
                              : finish<kFactors, kCross, kNothing>;
}

// A tile reads these only after its sums.
void fetch_cross(const Product& product, std::int64_t row, std::int64_t rows, std::int64_t column,
                 std::int64_t width) {
  const DenseStep& step = product.step;
  for (std::int64_t i = row; i < row + rows; ++i)
    for (std::int64_t at = i * step.width + column; at < i * step.width + column + width; at += kLanes) {
      _mm_prefetch(step.values + at, _MM_HINT_T0);
      if (step.first != step.values) _mm_prefetch(step.first + at, _MM_HINT_T0);

    }
}

template <Factors kFactors>
void multiply(const Product& product) {
  const DenseStep& step = product.step;
  const Finish finish = step.first ? finish_of<kFactors, true>(step.low_kind)
                                   : finish_of<kFactors, false>(step.low_kind);
  alignas(64) float sums[kRows * kColumns];
  for (std::int64_t column = 0; column < step.width; column += kColumns) {
    const std::int64_t left = step.width - column, width = left < kColumns ? left : kColumns;
    const SumTile* tiles = kTilesOf<kFactors>[(width + kLanes - 1) / kLanes - 1];
    for (std::int64_t row = 0; row < step.rows; row += kRows) {
      const std::int64_t more = step.rows - row, rows = more < kRows ? more : kRows;
      if (step.first) fetch_cross(product, row, rows, column, width);
      tiles[rows - 1](product, row, column, sums);
      for (std::int64_t i = 0; i < rows; ++i)
        finish(product, row + i, column, width, sums + i * kColumns);
    }
  }
}

}  // namespace

bool has_product(std::int32_t factors) {
  if (!has(kAvx512)) return false;
  // A matrix unit, which oneDNN's products use, is several times as fast.
  const Processor& here = processor();
  if (factors == kByteQuads) return here.avx512_vnni && !here.amx_int8;
  return factors == kFloats || (here.avx512_bf16 && !here.amx_bf16);
}

void product_avx512(const Product& product) {
  if (product.factors == kByteQuads) return multiply<kByteQuads>(product);
  if (product.factors == kBfloatPairs) return multiply<kBfloatPairs>(product);
  multiply<kFloats>(product);
}

}  // namespace sharded_infer

SHARDED_INFER_END_TARGET
#else
namespace sharded_infer {
bool has_product(std::int32_t) { return false; }
}  // namespace sharded_infer
#endif
