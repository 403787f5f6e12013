// A shard host's shares of versions, whose lookups are answered without Python; see
// remote_lookup/share.h.
#pragma once
#include <cstdint>

#include "abi/exported.h"
#include "abi/lookup.h"
#include "abi/model.h"

namespace sharded_infer::transport {
class Server;
struct Event;
}  // namespace sharded_infer::transport

namespace sharded_infer::lookups {

class Shares;
struct Share;

// Of a mapped file: not 0 when pages were lost, and a byte that would be lost first.
struct Watch {
  const volatile std::int32_t* lost;
  const volatile std::uint8_t* place;
  std::int32_t byte;

  bool is_whole() const;
};

// The memory stays until the share is dropped.
struct Piece {
  const std::uint8_t* rows;
  std::int64_t row_bytes;
  std::int64_t row_count;
  std::int64_t first_row;  // in its table
  std::int64_t columns;
  std::int32_t format;
  std::int32_t mean;
  const RowOverlay* overlay;  // changed rows, or null
  const Watch* watches;       // of the files that rows are mapped from
  std::int64_t watch_count;
  const IdMap* id_map;  // of its table; null: its ids are rows alone

  bool is_whole() const;

  // At a column of sums.
  Feature feature(std::int64_t column) const;

  const std::uint8_t* row_of(std::int64_t id) const;
};

struct ShareSettings {
  const char* model;
  std::uint64_t version;
  std::uint64_t manifest;
  std::uint64_t share;  // of its digest, as LookupRequest has it
  const Piece* pieces;
  std::int64_t piece_count;
  std::int64_t most_entries;       // of all groups of a request
  std::int64_t most_answer_bytes;  // of fp32
  RunLookup run;
  std::int32_t instruction_set;
};

}  // namespace sharded_infer::lookups

extern "C" {

// Boundaries of the times of lookups, in seconds.
EXPORTED sharded_infer::lookups::Shares* sharded_infer_shares_create(const double boundaries[],
                                                                     std::int64_t count);
EXPORTED const sharded_infer::lookups::Share* sharded_infer_shares_add(
    sharded_infer::lookups::Shares* shares, const sharded_infer::lookups::ShareSettings* settings);

// Returns when no lookup uses the share any more.
EXPORTED void sharded_infer_shares_drop(sharded_infer::lookups::Shares* shares,
                                        const sharded_infer::lookups::Share* share);

// Times of the lookups that were answered here, as `LookupCounts::read` writes them.
EXPORTED void sharded_infer_shares_counted(const sharded_infer::lookups::Shares* shares,
                                           std::int64_t to[]);

// As `Server::fetch` of one event, but lookups of the method are answered here where they can be.
EXPORTED std::int32_t sharded_infer_shares_fetch(sharded_infer::lookups::Shares* shares,
                                                 sharded_infer::transport::Server* server,
                                                 std::int32_t method,
                                                 sharded_infer::transport::Event* event,
                                                 std::int32_t held, std::int32_t milliseconds);
}
