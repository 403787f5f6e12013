// See choice.h.
#include "choice.h"

#define XXH_INLINE_ALL
#include "third_party/xxhash.h"

namespace sharded_infer::call {
namespace {

constexpr int kFractionBits = 32;

// -log2((word + 1) / 2^64) in 2^-32, above 0: each squaring gives one more bit of the logarithm.
std::uint64_t negative_log2(std::uint64_t word) {
  word |= 1;
  const int zeros = __builtin_clzll(word);
  std::uint64_t log = 63u - unsigned(zeros);
  word <<= zeros;
  for (int bit = 0; bit < kFractionBits; ++bit) {
    word = std::uint64_t((static_cast<unsigned __int128>(word) * word) >> 64);
    const std::uint64_t top = word >> 63;
    log = log << 1 | top;
    word <<= 1 - top;
  }
  return (std::uint64_t{64} << kFractionBits) - log;
}

}  // namespace

bool position_of(Bytes message, const Header& header, std::uint64_t seed, std::uint64_t& position) {
  if (header.key_is_number) {
    position = XXH3_64bits_withSeed(&header.key_number, sizeof header.key_number, seed);
    return true;
  }
  if (header.key.size == 0) return false;
  position =
      XXH3_64bits_withSeed(message.data + header.key.start, std::size_t(header.key.size), seed);
  return true;
}

const Share& choose(const std::vector<Share>& shares, std::uint64_t position) {
  const Share* best = nullptr;
  std::uint64_t least = 0;
  for (const Share& share : shares) {
    const std::uint64_t cost = negative_log2(mixed(position ^ share.hash));
    // cost / weight < least / best->weight, in whole numbers: below 2^39 times at most 10^6.
    if (best == nullptr || cost * best->weight < least * share.weight) {
      best = &share;
      least = cost;
    }
  }
  return *best;
}

}  // namespace sharded_infer::call
