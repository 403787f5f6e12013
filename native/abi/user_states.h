// States of users, in memory that processes share: of a history by blocks of positions, and whole.
//
// A block's name is a keyed hash (SipHash-2-4 of 128 bits) of the name before it and of its
// positions' inputs, the first one's of its owner's name. So equal beginnings of histories have
// equal names, and others can have none of them. The name of a whole state is its caller's.
#pragma once
#include <cstdint>

#include "abi/exported.h"

namespace sharded_infer {

constexpr std::int64_t kNameWords = 2;
constexpr std::int64_t kBlockPositions = 16;

// An input of each position of some histories, whose values follow each other.
struct StateColumn {
  const std::int64_t* values;
  const std::int64_t* lengths;  // [histories], values of each
  std::int64_t width;           // values of a position
};

// An owner of states, such as a version.
struct StateOwner {
  std::uint64_t name[kNameWords];  // of all that a state depends on besides a user's inputs
  std::int64_t evictions;          // of any states, for this owner's, by this process
};

enum class Keeping : std::int32_t { kNothing, kWorthwhile, kAll };

// Blocks of a history whose states are known before a call of passes.
struct KnownBlocks {
  void* table;
  StateOwner* owner;
  const std::uint64_t* names;  // of all whole blocks
  std::int64_t count;          // of the first blocks, which are read; inputs begin behind them
  Keeping keeping;             // which of the other blocks' states are kept
  std::int32_t is_bfloat;      // states are kept in bf16
};

struct PrefixSearch {
  void* table;
  StateOwner* owner;
  const StateColumn* columns;
  std::int64_t column_count;
  const std::int64_t* firsts;     // [histories], the first positions that are used
  const std::int64_t* positions;  // [histories], used ones
  std::int64_t histories;
  std::uint64_t* names;    // written: kNameWords of each whole block, of all histories
  KnownBlocks* blocks;     // [histories], written
  std::int64_t* behind;    // [2, histories], written: the first position behind the known ones, and
                           // how many there are
  std::int32_t is_bfloat;  // as of KnownBlocks
  std::int64_t hits;       // written: histories with known positions
  std::int64_t known;      // written: known positions, and all others
  std::int64_t computed;
};

// Of an owner, over all processes.
struct StateCounts {
  std::int64_t states, bytes;
};

}  // namespace sharded_infer

extern "C" {
// Makes a table in zeroed memory of whole pages, for hashes with a key [2] of random bits. Returns
// 1 if there is too little memory for one state.
EXPORTED std::int32_t sharded_infer_states_create(void* memory, std::int64_t bytes,
                                                  const std::uint64_t* key);

// Names the whole blocks of histories, and finds those that are kept, without a gap from the first
// one on. A history's last position belongs to none of them.
EXPORTED_KEEPING_GIL void sharded_infer_states_find(sharded_infer::PrefixSearch* search);

// Bytes of a whole state, at most `room` of which are written; 0: it is not kept.
EXPORTED_KEEPING_GIL std::int64_t sharded_infer_states_read(void* table, const std::uint64_t* name,
                                                            void* out, std::int64_t room);

// Keeps a whole state that took `seconds`, where it has room. Without `is_always`, a state that
// comes for the first time is refused while memory is short.
EXPORTED_KEEPING_GIL void sharded_infer_states_write(void* table, sharded_infer::StateOwner* owner,
                                                     const std::uint64_t* name, const void* state,
                                                     std::int64_t bytes, double seconds,
                                                     std::int32_t is_always);

EXPORTED void sharded_infer_states_count(void* table, const sharded_infer::StateOwner* owner,
                                         sharded_infer::StateCounts* out);
}
