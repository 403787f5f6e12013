// Raw ids: their index, the places of their rows, and hashes.
#pragma once
#include <cstdint>

#include "abi/exported.h"

namespace sharded_infer {

constexpr std::int64_t kSlots = 5;
constexpr std::int64_t kBucketBytes = 64;
constexpr std::int64_t kMostSteps = 255;

// An index of raw ids; see base/id_index.h.
struct IdIndex {
  const std::uint8_t* buckets;  // home_buckets + kMostSteps
  std::uint64_t home_buckets;   // at most 2^32
  std::uint64_t table_rows;     // at most 2^32
  std::uint64_t seed;
};

// Keys that lie behind the buckets written so far, from the earliest home on.
constexpr std::int64_t kMostPending = kSlots * (kMostSteps + 1);
struct PendingIds {
  std::int64_t count;
  std::uint64_t keys[kMostPending];
  std::uint32_t rows[kMostPending];
};

// Hashes of ids and of strings; each is written down in kernels/ids/id_hash.py.
enum class IdHash : std::int32_t { kIdentity, kMurmurHash3_2x64, kXxh3_64 };
enum class StringHash : std::int32_t { kXxh3_64, kMurmur3X64_128 };

}  // namespace sharded_infer

extern "C" {

// Writes each id's row, -1 for unknown ones.
EXPORTED void sharded_infer_rows_of_ids(const sharded_infer::IdIndex* index,
                                        const std::int64_t ids[], std::int64_t count,
                                        std::int64_t rows[]);

// Writes some buckets of an index. The caller has checked the keys' order. See base/id_index.h.
EXPORTED std::int32_t sharded_infer_place_ids(const sharded_infer::IdIndex* index,
                                              std::uint64_t first, std::int64_t bucket_count,
                                              const std::uint64_t keys[],
                                              const std::uint32_t rows[], std::int64_t key_count,
                                              sharded_infer::PendingIds* pending,
                                              std::uint8_t out[]);

// Writes rows in place of ids that have a place; see base/row_places.h. 0: a row lies outside the
// table.
EXPORTED std::int32_t sharded_infer_placed_rows(const std::uint8_t blocks[], std::uint64_t placed,
                                                std::uint64_t table_rows, std::int64_t ids[],
                                                std::int64_t count);

// The hash of each string. The caller has checked the offsets.
EXPORTED void sharded_infer_hash_strings(sharded_infer::StringHash hash, const std::uint8_t data[],
                                         const std::int64_t offsets[], std::int64_t count,
                                         std::uint64_t seed, std::uint64_t out[]);

// Joins strings that follow their lengths; see base/id_hash.h.
EXPORTED std::int64_t sharded_infer_join_strings(const std::uint8_t data[], std::int64_t bytes,
                                                 std::int64_t count, std::uint8_t joined[],
                                                 std::int64_t offsets[]);

// The hash of each id.
EXPORTED void sharded_infer_hash_ids(sharded_infer::IdHash hash, const std::uint64_t ids[],
                                     std::int64_t count, std::uint64_t seed, std::uint64_t out[]);

// FBGEMM's hash of each id and of y.
EXPORTED void sharded_infer_murmur_hash3_2x64(const std::uint64_t ids[], std::int64_t count,
                                              std::uint64_t y, std::uint64_t seed,
                                              std::uint64_t out[]);
}
