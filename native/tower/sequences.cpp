// Kernels of sequences on each instruction set. The callers have checked the sizes.
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "abi/passes.h"
#include "abi/pair_layers.h"
#include "base/clock.h"
#include "tower/user_states.h"

#define SHARDED_INFER_KERNELS "tower/sequences.inc"
#include "base/each_instruction_set.inc"

using sharded_infer::Attention;
using sharded_infer::PairLayers;
using sharded_infer::Passes;
using sharded_infer::RowSteps;

extern "C" {

std::int64_t sharded_infer_attention_space(const Attention* attention) {
  return sharded_infer::baseline::space_of(*attention);
}

void sharded_infer_attention(std::int32_t instruction_set, const Attention* attention) {
  SHARDED_INFER_FOR(instruction_set, run(*attention));
}

std::int64_t sharded_infer_pair_layers_space(const PairLayers* pairs) {
  return sharded_infer::baseline::space_of(*pairs);
}

void sharded_infer_pair_layers(std::int32_t instruction_set, const PairLayers* pairs) {
  SHARDED_INFER_FOR(instruction_set, run(*pairs));
}

std::int64_t sharded_infer_row_panel_columns(std::int32_t instruction_set) {
  return SHARDED_INFER_FOR(instruction_set, kPanelColumns);
}

void sharded_infer_row_steps(std::int32_t instruction_set, const RowSteps* steps) {
  SHARDED_INFER_FOR(instruction_set, run(*steps));
}

std::int32_t sharded_infer_passes(std::int32_t instruction_set, Passes* passes) {
  constexpr std::size_t kLine = 64;
  const std::size_t bytes = sharded_infer::baseline::space_of(*passes) * sizeof(float) + kLine - 1;
  passes->space = static_cast<float*>(std::aligned_alloc(kLine, bytes / kLine * kLine));
  if (!passes->space && bytes >= kLine) return 1;
  const bool are_kept = SHARDED_INFER_FOR(instruction_set, run(*passes));
  std::free(passes->space);
  return are_kept ? 0 : 2;
}
}
