// Steps that compute each row by itself, some rows at a time, so that what lies between two steps
// stays in the cache: the layers, norms and sums between the attentions of a transformer.
//
//     for each tile of rows: for each step:
//         out = first @ weight.T + bias                          linear
//         out = (first - mean) / sqrt(variance + epsilon) * weight + bias
//         out = first + second, first - second, first * second
//         out = relu(first), sigmoid(first), silu(first), gelu(first)
//         out = first and second, side by side            joined
//
// A row's numbers depend on that row alone, to the bit. A sum of products goes over the inputs in
// ascending order.
#pragma once
#include <cstdint>

#include "abi/exported.h"

namespace sharded_infer {

enum class StepKind : std::int32_t {
  kLinear,
  kNorm,
  kSum,
  kDifference,
  kProduct,
  kRelu,
  kSigmoid,
  kSilu,
  kJoined,
  kGelu,
};

// Memory that steps read or write.
struct StepMemory {
  float* numbers;
  std::int64_t stride;  // numbers from one row to the next
  std::int64_t moves;   // as the stride; 0 where each tile has the same numbers
};

// Columns of a memory; as many as the step has.
struct StepColumns {
  std::int64_t memory;
  std::int64_t first;
};

struct RowStep {
  const float* weight;  // linear: panels of kPanelColumns, [inputs, columns] each; norm:
                        // [outputs], or null
  const float* bias;    // [outputs], or null
  StepColumns first, second, out;
  std::int64_t inputs;  // columns that a linear step reads; of a joined one's first
  std::int64_t outputs;
  float epsilon;
  StepKind kind;
};

struct RowSteps {
  const StepMemory* memories;
  const RowStep* steps;
  std::int64_t step_count;
  std::int64_t rows;
  std::int64_t tile;  // rows at a time
};

}  // namespace sharded_infer

extern "C" {
// Columns of a panel of a linear step's weight.
EXPORTED_KEEPING_GIL std::int64_t sharded_infer_row_panel_columns(std::int32_t instruction_set);
EXPORTED void sharded_infer_row_steps(std::int32_t instruction_set,
                                      const sharded_infer::RowSteps* steps);
}
