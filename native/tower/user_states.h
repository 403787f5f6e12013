// A table of states in memory that processes share: each shard has a lock, entries and chunks.
//
// Where memory is short, sampled eviction removes the least valuable of a few random states: by the
// seconds that it saves, divided by its bytes and by the time since it was read. After a process
// has died inside a shard, the next owner of its lock empties it.
#pragma once
#include <cstdint>

#include "abi/user_states.h"

namespace sharded_infer {

// Columns of a memory with a row for each position.
struct StateRows {
  float* numbers;  // of the first position
  std::int64_t stride;
  std::int64_t width;
};

// Blocks of one history.
struct StateBlocks {
  void* table;
  StateOwner* owner;
  const std::uint64_t* names;  // [blocks, kNameWords]
  const StateRows* rows;
  std::int64_t rows_count;
  bool is_bfloat;  // states are kept in bf16
  bool is_always;  // also those that come for the first time while memory is short
};

// Reads the first blocks; false: one of them is no longer kept.
bool read_blocks(const StateBlocks& blocks, std::int64_t count);

// Keeps the blocks from `first` to `end`, each of which took `seconds`.
void write_blocks(const StateBlocks& blocks, std::int64_t first, std::int64_t end, double seconds);

}  // namespace sharded_infer
