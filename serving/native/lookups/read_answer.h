// Reads a LookupResponse (protos/sharded_infer/v1/shard_host.proto), and pools the rows in it.
//
//     find the sums of each group, the counts of rows, and the rows
//     without counts: all sums are where they came
//     else for each entry:
//         0: copy its columns
//         1 + n: its ids have n distinct ones; ids become their numbers; pool the n rows
//
// The host is not trusted: nothing is read outside the message, whatever it says.
#pragma once
#include <cstdint>

#include "../wire.h"
#include "share.h"

namespace sharded_infer::lookups {

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
  std::int64_t raw;          // whether ids are raw
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

// Reads the message into the groups; what is refused, if anything.
Refused read_answer(Bytes message, AskedGroup* groups, std::int64_t count, RunLookup run,
                    std::int32_t instruction_set);

}  // namespace sharded_infer::lookups
