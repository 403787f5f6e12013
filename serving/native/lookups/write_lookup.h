// Writes a LookupRequest (protos/sharded_infer/v1/shard_host.proto), numbers as narrow as they fit.
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
};

struct Named {
  const char* model;
  std::uint64_t version;
  std::uint64_t manifest;
  std::uint64_t share;  // 0: any
};

// Room for the message of these groups.
std::int64_t most_bytes(const Named& named, const PieceBags* groups, std::int64_t count);

// Writes the message, whose length is returned.
std::int64_t write_lookup(const Named& named, const PieceBags* groups, std::int64_t count,
                          std::uint8_t* to);

}  // namespace sharded_infer::lookups
