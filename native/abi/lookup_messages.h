// Messages of lookups that a front asks of shard hosts; see remote_lookup/.
#pragma once
#include <cstdint>

#include "abi/exported.h"
#include "abi/lookup.h"

namespace sharded_infer::lookups {

// Bags of pieces, as a front has them.
struct PieceBags {
  const std::int64_t* pieces;   // [entries]
  const std::int64_t* lengths;  // [entries, bags]
  const std::int64_t* ids;      // [id_count]
  const float* weights;         // [id_count], or null
  std::int64_t entries;
  std::int64_t bags;
  std::int64_t id_count;
  std::int64_t sum_bytes;  // of a number of the sums: 4, or 2 for bf16
  std::int64_t raw;        // ids are raw
};

struct Named {
  const char* model;
  std::uint64_t version;
  std::uint64_t manifest;
};

// The request of one host: the next `group_count` groups.
struct Asked {
  std::uint64_t share;  // 0: any
  std::int64_t group_count;
  std::int64_t rows;  // stored rows may answer
};

// A piece that was asked, as the kernels know it.
struct AskedPiece {
  std::int64_t columns;
  std::int64_t row_bytes;
  std::int64_t format;
  std::int64_t mean;
};

struct AskedGroup {
  const AskedPiece* pieces;     // [entries]
  const std::int64_t* lengths;  // [entries, bags]
  const std::int64_t* ids;      // [id_count]
  const float* weights;         // [id_count], or null
  std::int64_t entries;
  std::int64_t bags;
  std::int64_t id_count;
  std::int64_t columns;      // of all entries
  std::int64_t sum_bytes;    // of a number that comes: 4, or 2 for bf16
  std::int64_t raw;          // ids are raw
  float* pooled;             // [bags, columns]; written, unless:
  const std::uint8_t* sums;  // written: where they are as they came, fp32; null: in `pooled`
  const std::uint8_t*
      unknown;  // written: counts of unknown raw ids, 4 bytes each [entries, bags], or null
};

enum Refusal : std::int32_t {
  kNone,
  kNoResponse,    // byte `got` is of no such message
  kOtherGroups,   // number of sums
  kOtherSums,     // bytes of the sums of `group`
  kOtherEntries,  // bytes of the counts
  kOtherRows,     // number of rows of `entry` of `group`
  kFewRowBytes,   // bytes of rows, from `entry` of `group` on
  kMoreRowBytes,  // bytes of all rows
  kOtherUnknown   // bytes of the counts of unknown ids
};

struct Refused {
  std::int64_t reason, group, entry, expected, got;
};

}  // namespace sharded_infer::lookups

extern "C" {

// Room for the messages.
EXPORTED_BOTH_WAYS std::int64_t sharded_infer_lookup_most_bytes(
    const sharded_infer::lookups::Named* named, const sharded_infer::lookups::Asked asked[],
    std::int64_t hosts, const sharded_infer::lookups::PieceBags groups[]);

// Writes a message for each host, one after another, and their lengths to `bytes` [hosts].
EXPORTED_BOTH_WAYS void sharded_infer_lookup_write(const sharded_infer::lookups::Named* named,
                                                   const sharded_infer::lookups::Asked asked[],
                                                   std::int64_t hosts,
                                                   const sharded_infer::lookups::PieceBags groups[],
                                                   std::uint8_t to[], std::int64_t bytes[]);

// 1: the answer is refused, with the reason in `refused`.
EXPORTED_BOTH_WAYS std::int32_t sharded_infer_answer_read(
    const std::uint8_t message[], std::int64_t bytes, sharded_infer::lookups::AskedGroup groups[],
    std::int64_t count, sharded_infer::RunLookup run, std::int32_t instruction_set,
    sharded_infer::lookups::Refused* refused);
}
