// Passes of one request.
#pragma once
#include "abi/passes.h"

namespace sharded_infer {

struct PassesOfRequest : Passes {
  float* const* given;
  std::int64_t positions;
  std::int64_t candidates;
  const KnownBlocks* blocks;  // or null
  float* space;               // space_of() floats, from a line of the cache on
};

inline std::int64_t counted(std::int64_t count, const PassesOfRequest& call) {
  return count == kPositions ? call.positions : count == kCandidates ? call.candidates : count;
}

// Positions whose state is known.
inline std::int64_t known_positions(const PassesOfRequest& call) {
  return call.blocks ? call.blocks->count * kBlockPositions : 0;
}

// Elements of a memory that is given.
inline std::int64_t numbers_of(const PassesOfRequest& call, std::int64_t at) {
  const PassMemory& memory = call.memories[at];
  const bool is_behind = at < call.input_count && memory.rows == kPositions;
  const std::int64_t rows = counted(memory.rows, call) - (is_behind ? known_positions(call) : 0);
  return rows * counted(memory.width, call);
}

}  // namespace sharded_infer
