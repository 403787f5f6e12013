#if defined(__x86_64__)
#include "product.h"
#include "base/target.h"

#include <cstring>
#include <immintrin.h>
#include <vector>

SHARDED_INFER_BEGIN_TARGET(SHARDED_INFER_AVX2)

namespace sharded_infer {
namespace {
#include "base/lanes_avx2.inc"
#include "base/lanes_x86.inc"
#include "dense_rows.inc"

constexpr std::int64_t kRows = 6;      // of a tile: its sums take 12 of the 16 registers
constexpr std::int64_t kColumns = 64;  // of a block: tiles of 16 columns read the same rows

// Bytes as words, whose products are added in pairs without overflow: those of bytes would be added
// in 16 bits.
inline std::int64_t pairs_of(const Product& product) { return (product.row_bytes + 1) / 2; }

// rows * pairs * 2 words; an odd last byte is followed by 0.
inline void widen(const Product& product, std::int64_t row, std::int64_t rows, std::int16_t* to) {
  const std::int64_t bytes = product.row_bytes;
  for (std::int64_t i = 0; i < rows; ++i, to += 2 * pairs_of(product)) {
    const std::uint8_t* from = product.x + (row + i) * bytes;
    if (bytes % 2) to[bytes] = 0;
    for (std::int64_t at = 0; at < bytes; ++at) to[at] = from[at];
  }
}

template <int rows>
void sum_floats(const float* x, std::int64_t stride, const float* weight, float* to) {
  __m256 sums[rows][2];
#pragma GCC unroll 6
  for (int i = 0; i < rows; ++i) sums[i][0] = sums[i][1] = _mm256_setzero_ps();
  for (std::int64_t k = 0; k < stride; ++k, weight += 16) {
    const __m256 low = _mm256_loadu_ps(weight), high = _mm256_loadu_ps(weight + 8);
#pragma GCC unroll 6
    for (int i = 0; i < rows; ++i) {
      const __m256 all_x = _mm256_broadcast_ss(x + i * stride + k);
      sums[i][0] = _mm256_fmadd_ps(all_x, low, sums[i][0]);
      sums[i][1] = _mm256_fmadd_ps(all_x, high, sums[i][1]);
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < rows; ++i) store(to + i * kColumns, Lanes{sums[i][0], sums[i][1]});
}

struct Words {
  std::int16_t of_pair[2];
};

// In assembler: GCC 12 loads all rows first, and then has no registers left for the sums.
template <int rows>
void sum_words(const std::int16_t* x, std::int64_t pairs, const std::uint8_t* weight, float* to) {
  __m256i sums[rows][2];
#pragma GCC unroll 6
  for (int i = 0; i < rows; ++i) sums[i][0] = sums[i][1] = _mm256_setzero_si256();
  for (std::int64_t pair = 0; pair < pairs; ++pair, weight += 32) {
    const auto* bytes = reinterpret_cast<const __m128i*>(weight);
    const __m256i low = _mm256_cvtepi8_epi16(_mm_loadu_si128(bytes));
    const __m256i high = _mm256_cvtepi8_epi16(_mm_loadu_si128(bytes + 1));
#pragma GCC unroll 6
    for (int i = 0; i < rows; ++i) {
      const auto& words = *reinterpret_cast<const Words*>(x + 2 * (i * pairs + pair));
      __m256i one, other;
      asm("vpbroadcastd %4, %2\n\t"
          "vpmaddwd %5, %2, %3\n\t"
          "vpmaddwd %6, %2, %2\n\t"
          "vpaddd %3, %0, %0\n\t"
          "vpaddd %2, %1, %1"
          : "+x"(sums[i][0]), "+x"(sums[i][1]), "=&x"(one), "=&x"(other)
          : "m"(words), "x"(low), "x"(high));
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < rows; ++i)
    store(to + i * kColumns,
          Lanes{_mm256_castsi256_ps(sums[i][0]), _mm256_castsi256_ps(sums[i][1])});
}

constexpr auto kSumFloats = {sum_floats<1>, sum_floats<2>, sum_floats<3>,
                             sum_floats<4>, sum_floats<5>, sum_floats<6>};
constexpr auto kSumWords = {sum_words<1>, sum_words<2>, sum_words<3>,
                            sum_words<4>, sum_words<5>, sum_words<6>};

template <Factors kFactors>
inline void sum_block(const Product& product, std::int64_t row, std::int64_t rows,
                      std::int64_t column, std::int64_t width, float* sums) {
  if constexpr (kFactors == Factors::kFp32) {
    const std::int64_t stride = product.row_bytes / 4;
    const auto* x = reinterpret_cast<const float*>(product.x) + row * stride;
    const auto* weight = reinterpret_cast<const float*>(product.weight) + column * stride;
    for (std::int64_t at = 0; at < width; at += kLanes)
      kSumFloats.begin()[rows - 1](x, stride, weight + at * stride, sums + at);
  } else {
    static thread_local std::vector<std::int16_t> words;
    const std::int64_t pairs = pairs_of(product);
    words.resize(kRows * pairs * 2);
    widen(product, row, rows, words.data());
    const std::uint8_t* weight = product.weight + column * pairs * 2;
    for (std::int64_t at = 0; at < width; at += kLanes)
      kSumWords.begin()[rows - 1](words.data(), pairs, weight + at * pairs * 2, sums + at);
  }
}

inline Lanes from_integers(const float* sums, const std::int32_t* offset) {
  const auto eight = [&](int at) {
    const auto* sum = reinterpret_cast<const __m256i*>(sums + at);
    const auto* less = reinterpret_cast<const __m256i*>(offset + at);
    return _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_loadu_si256(sum), _mm256_loadu_si256(less)));
  };
  return {eight(0), eight(8)};
}

#include "product_rows.inc"
}  // namespace

void product_avx2(const Product& product) {
  if (product.factors == Factors::kBytes) return multiply<Factors::kBytes>(product);
  multiply<Factors::kFp32>(product);
}

}  // namespace sharded_infer

SHARDED_INFER_END_TARGET
#endif
