// Hashes of raw ids and of strings; each is written down in kernels/ids/id_hash.py.
#pragma once
#include <cstdint>

#include "abi/ids.h"

namespace sharded_infer {

// FBGEMM's hash of two words (common_utils.cuh), which TorchRec's MPZCH modules use with y and seed
// 0.
std::uint64_t murmur_hash3_2x64(std::uint64_t x, std::uint64_t y, std::uint64_t seed);

std::uint64_t hash_id(IdHash hash, std::uint64_t id, std::uint64_t seed);

std::uint64_t hash_string(StringHash hash, const std::uint8_t* string, std::uint64_t bytes,
                          std::uint64_t seed);

// The hash of each string: bytes [offsets[i], offsets[i + 1]) of the data.
void hash_strings(StringHash hash, const std::uint8_t* data, const std::int64_t* offsets,
                  std::int64_t count, std::uint64_t seed, std::uint64_t* out);

// Joins strings that each follow their length in 4 bytes, little-endian, and writes `count + 1`
// offsets. Returns how many are whole: fewer than `count` where the data ends before.
// joined: room for `bytes`.
std::int64_t join_strings(const std::uint8_t* data, std::int64_t bytes, std::int64_t count,
                          std::uint8_t* joined, std::int64_t* offsets);

}  // namespace sharded_infer
