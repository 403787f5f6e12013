// Writes LookupRequests (protos/sharded_infer/v1/shard_host.proto), numbers as narrow as they fit.
#pragma once
#include <cstdint>

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
  std::int64_t raw;        // whether ids are raw
};

struct Named {
  const char* model;
  std::uint64_t version;
  std::uint64_t manifest;
};

// What one host is asked: the next `group_count` groups.
struct Asked {
  std::uint64_t share;  // 0: any
  std::int64_t group_count;
  std::int64_t rows;  // whether stored rows may answer
};

// Room for the messages.
std::int64_t most_bytes(const Named& named, const Asked* asked, std::int64_t hosts,
                        const PieceBags* groups);

// Writes a message for each host, one after another, and their lengths to `bytes` [hosts].
void write_lookups(const Named& named, const Asked* asked, std::int64_t hosts,
                   const PieceBags* groups, std::uint8_t* to, std::int64_t* bytes);

}  // namespace sharded_infer::lookups
