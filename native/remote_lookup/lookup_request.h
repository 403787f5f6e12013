// A LookupRequest (protos/sharded_infer/v1/shard_host.proto), read strictly; see wire.h.
#pragma once
#include <vector>

#include "base/wire.h"

namespace sharded_infer::lookups {

// Arrays of one group, as they came.
struct Group {
  Bytes pieces;  // four bytes each
  Bytes lengths;
  Bytes ids;
  Bytes weights;  // four bytes each
  std::int64_t length_bytes = 0;
  std::int64_t id_bytes = 0;
  std::int64_t sum_bytes = 4;
  bool raw = false;  // ids

  std::int64_t entries() const { return pieces.size / 4; }
  std::int64_t bags() const { return lengths.size / length_bytes / entries(); }
  std::int64_t id_count() const { return id_bytes == 0 ? 0 : ids.size / id_bytes; }
};

// Of a message that is read here; Python counts the parts of others first.
constexpr std::size_t kMostGroups = 4096;

struct LookupRequest {
  Bytes model;
  std::uint64_t version = 0;
  std::uint64_t manifest = 0;
  std::uint64_t share = 0;  // 0: any
  bool rows = false;        // whether stored rows may answer
  std::vector<Group> groups;
};

// Whether the message is usual, and each group's arrays have whole numbers that fit together.
bool read_lookup(Bytes message, LookupRequest& request);

}  // namespace sharded_infer::lookups
