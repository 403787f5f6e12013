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

struct Passes {
  const PassMemory* memories;
  std::int64_t memory_count;
  const Pass* passes;
  std::int64_t pass_count;
  std::int64_t given_count;  // of the memories, the first ones
  std::int64_t input_count;  // of the memories that are given, the first ones are read
  const StateOfPasses* states;
  std::int64_t state_count;
};

// Runs for several requests, whose rows of a memory that is given follow each other.
struct PassesRun {
  const Passes* passes;
  float* const* given;             // [given_count]
  const std::int64_t* numbers;     // [given_count], elements of each
  const std::int64_t* positions;   // [requests], at least 1
  const std::int64_t* candidates;  // [requests], or null
  const KnownBlocks* blocks;       // [requests], or null
  std::int64_t requests;
  std::int64_t memory;    // written, of the first that has a wrong number of elements
  std::int64_t expected;  // written: its elements
};

}  // namespace sharded_infer

extern "C" {
// Passes of all requests in one call. Returns 1 without memory for their space, 2 if a block is no
// longer kept, 3 if a memory has a wrong number of elements.
EXPORTED std::int32_t sharded_infer_passes(std::int32_t instruction_set,
                                           sharded_infer::PassesRun* run);
}
