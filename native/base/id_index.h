// An index of raw ids: 64-bit keys in buckets of one cache line, each with its row of a table.
//
//     bucket: 5 keys of 8 bytes, 5 rows of 4 bytes, 1 byte: slots used, 3 bytes: the filter
//
//     hash = mix(key + (seed + 1) * 0x9E3779B97F4A7C15)
//     home = (hash >> 32) * home_buckets >> 32
//     look in bucket home, then in those behind it, up to kMostSteps:
//         a used slot has the key: its row
//         the filter's bit of the hash is 0: unknown
//
// A bucket's filter has the bits of all keys that found it full and lie behind it. There are
// kMostSteps more buckets than homes, so no search leaves the index, whatever its bytes are. A row
// outside the table reads as unknown.
#pragma once
#include <cstdint>
#include <cstring>

#include "abi/ids.h"

namespace sharded_infer {

// The finalizer of splitmix64 (Stafford's Mix13); a bijection.
inline std::uint64_t hash_of_id(std::uint64_t key, std::uint64_t seed) {
  std::uint64_t hash = key + (seed + 1) * 0x9E3779B97F4A7C15u;
  hash = (hash ^ hash >> 30) * 0xBF58476D1CE4E5B9u;
  hash = (hash ^ hash >> 27) * 0x94D049BB133111EBu;
  return hash ^ hash >> 31;
}

// Of the hash whose ranges are parts of a table.
constexpr std::uint64_t kPartitionSeed = 0;

inline std::uint64_t home_of_hash(std::uint64_t hash, std::uint64_t home_buckets) {
  return (hash >> 32) * home_buckets >> 32;
}

// In the last word of a bucket, whose lowest byte counts the used slots.
inline std::uint32_t filter_bit(std::uint64_t hash) { return 256u << ((hash & 255) * 24 >> 8); }

// Writes each id's row, or -1 for an unknown one.
void rows_of_ids(const IdIndex& index, const std::int64_t* ids, std::int64_t count,
                 std::int64_t* rows);

// Writes the buckets [first, first + bucket_count). A bucket takes its own keys first, then pending
// ones. Keys come in the order of their hashes, their homes among these buckets. Returns 0, or 1 if
// a key would lie too far from home.
std::int32_t place_ids(const IdIndex& index, std::uint64_t first, std::int64_t bucket_count,
                       const std::uint64_t* keys, const std::uint32_t* rows, std::int64_t key_count,
                       PendingIds* pending, std::uint8_t* out);

}  // namespace sharded_infer
