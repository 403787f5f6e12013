#include "id_hash.h"

#define XXH_INLINE_ALL
#include "third_party/xxhash.h"

#include <cstring>

namespace sharded_infer {
namespace {

constexpr std::uint64_t kFirst = 0x87C37B91114253D5u, kSecond = 0x4CF5AD432745937Fu;

inline std::uint64_t rotated(std::uint64_t word, int bits) {
  return word << bits | word >> (64 - bits);
}

inline std::uint64_t mixed(std::uint64_t word) {
  word = (word ^ word >> 33) * 0xFF51AFD7ED558CCDu;
  word = (word ^ word >> 33) * 0xC4CEB9FE1A85EC53u;
  return word ^ word >> 33;
}

// The two halves of MurmurHash3_x64_128 (Appleby 2011).
struct Murmur3 {
  std::uint64_t first, second;

  static std::uint64_t first_word(std::uint64_t word) {
    return rotated(word * kFirst, 31) * kSecond;
  }
  static std::uint64_t second_word(std::uint64_t word) {
    return rotated(word * kSecond, 33) * kFirst;
  }

  void block(std::uint64_t one, std::uint64_t other) {
    first = (rotated(first ^ first_word(one), 27) + second) * 5 + 0x52DCE729u;
    second = (rotated(second ^ second_word(other), 31) + first) * 5 + 0x38495AB5u;
  }

  void finish(std::uint64_t bytes) {
    first ^= bytes;
    second ^= bytes;
    first += second;
    second += first;
    first = mixed(first);
    second = mixed(second);
    first += second;
    second += first;
  }
};

std::uint64_t murmur3(const std::uint8_t* data, std::uint64_t bytes, std::uint64_t seed) {
  Murmur3 state{seed, seed};
  std::uint64_t words[2];
  std::uint64_t at = 0;
  for (; at + 16 <= bytes; at += 16) {
    std::memcpy(words, data + at, 16);
    state.block(words[0], words[1]);
  }
  if (at < bytes) {
    words[0] = words[1] = 0;
    std::memcpy(words, data + at, bytes - at);
    // A word of zeros changes nothing.
    state.second ^= Murmur3::second_word(words[1]);
    state.first ^= Murmur3::first_word(words[0]);
  }
  state.finish(bytes);
  return state.first;
}

}  // namespace

std::uint64_t murmur_hash3_2x64(std::uint64_t x, std::uint64_t y, std::uint64_t seed) {
  Murmur3 state{seed, seed};
  state.block(x, y);
  state.finish(16);
  return state.first ^ state.second;
}

std::uint64_t hash_id(IdHash hash, std::uint64_t id, std::uint64_t seed) {
  if (hash == IdHash::kIdentity) return id;
  if (hash == IdHash::kMurmurHash3_2x64) return murmur_hash3_2x64(id, 0, seed);
  // Its 8 bytes, little-endian.
  return XXH3_64bits_withSeed(&id, sizeof id, seed);
}

std::uint64_t hash_string(StringHash hash, const std::uint8_t* string, std::uint64_t bytes,
                          std::uint64_t seed) {
  return hash == StringHash::kXxh3_64 ? XXH3_64bits_withSeed(string, bytes, seed)
                                      : murmur3(string, bytes, seed);
}

void hash_strings(StringHash hash, const std::uint8_t* data, const std::int64_t* offsets,
                  std::int64_t count, std::uint64_t seed, std::uint64_t* out) {
  for (std::int64_t at = 0; at < count; ++at)
    out[at] = hash_string(hash, data + offsets[at],
                          static_cast<std::uint64_t>(offsets[at + 1] - offsets[at]), seed);
}

std::int64_t join_strings(const std::uint8_t* data, std::int64_t bytes, std::int64_t count,
                          std::uint8_t* joined, std::int64_t* offsets) {
  std::int64_t at = 0, end = 0;
  for (std::int64_t string = 0; string < count; ++string) {
    offsets[string] = end;
    std::uint32_t length;
    if (bytes - at < std::int64_t(sizeof length)) return string;
    std::memcpy(&length, data + at, sizeof length);
    at += std::int64_t(sizeof length);
    if (bytes - at < std::int64_t(length)) return string;
    std::memcpy(joined + end, data + at, length);
    at += std::int64_t(length);
    end += std::int64_t(length);
  }
  offsets[count] = end;
  return count;
}

}  // namespace sharded_infer
