// Passes over the positions of one request's sequence, and over its candidates, one after another
// in one call. Each reads what the call is given, constants, and what the passes before it wrote.
#pragma once
#include <cstdint>

#include "abi/attention.h"
#include "abi/exported.h"
#include "abi/pair_biases.h"
#include "abi/row_steps.h"
#include "abi/user_states.h"

namespace sharded_infer {

enum class PassKind : std::int32_t { kRows, kAttention, kPairBiases };

constexpr std::int64_t kPositions = -1;   // as many rows or columns as there are positions
constexpr std::int64_t kCandidates = -2;  // as many rows as there are candidates

// Rows without gaps: first those that are given with a call, then constants, then those of the
// call's space.
struct PassMemory {
  const float* numbers;  // of a constant
  std::int64_t rows;
  std::int64_t width;
};

// The row that an operand begins with, if it is not a number from 0 on: the last one, or the last
// ones, as many as there are positions.
constexpr std::int64_t kLastRow = -1, kLastRows = -2;

struct PassOperand {
  std::int64_t memory;
  std::int64_t column;
  std::int64_t row;
};

struct RowsOfPass {
  const RowStep* steps;  // whose memories are the operands, the scratch and the constants
  std::int64_t step_count;
  const StepMemory* constants;
  std::int64_t constant_count;
  std::int64_t scratch_width;
  std::int64_t tile;
};

struct Pass {
  const PassOperand*
      operands;  // rows: inputs and outputs; attention: query, key, value, out; pair biases:
                 // numbers, out. Last a bias, or what is fixed, if there is one
  std::int64_t operand_count;
  const void*
      details;  // RowsOfPass, Attention or PairBiases, without what operands and positions say
  PassKind kind;
  std::int32_t rows;  // or queries: 1, kPositions or kCandidates, which read a memory of one row
                      // again and again
};

// Columns of a memory with a row for each position, on which the results of later positions depend.
struct StateOfPasses {
  std::int64_t memory;
  std::int64_t column;
  std::int64_t width;
};

// Blocks of positions whose state is known before a call; see abi/user_states.h.
enum class Keeping : std::int32_t { kNothing, kWorthwhile, kAll };

struct KnownBlocks {
  void* table;
  StateOwner* owner;
  const std::uint64_t* names;  // of all whole blocks
  std::int64_t count;          // of the first blocks, which are read; inputs begin behind them
  Keeping keeping;             // which of the other blocks' states are kept
  std::int32_t is_bfloat;      // states are kept in bf16
};

struct Passes {
  const PassMemory* memories;
  std::int64_t memory_count;
  const Pass* passes;
  std::int64_t pass_count;
  float* const* given;  // of the first given_count memories
  std::int64_t given_count;
  std::int64_t positions;  // at least 1
  std::int64_t candidates;
  float* space;              // space_of() floats, from a line of the cache on
  std::int64_t input_count;  // of the memories that are given, the first ones are read
  const StateOfPasses* states;
  std::int64_t state_count;
  const KnownBlocks* blocks;  // or null
};

}  // namespace sharded_infer

extern "C" {
// Passes in one call. Returns 1 without memory for their space, 2 if a block is no longer kept.
EXPORTED std::int32_t sharded_infer_passes(std::int32_t instruction_set,
                                           sharded_infer::Passes* passes);
}
