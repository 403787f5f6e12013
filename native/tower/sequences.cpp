// Kernels of sequences on each instruction set. The callers have checked the sizes.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "abi/passes.h"
#include "abi/pair_layers.h"
#include "base/clock.h"
#include "tower/passes_of_request.h"
#include "tower/user_states.h"

#define SHARDED_INFER_KERNELS "tower/sequences.inc"
#include "base/each_instruction_set.inc"

using sharded_infer::Attention;
using sharded_infer::PairLayers;
using sharded_infer::PassesOfRequest;
using sharded_infer::PassesRun;
using sharded_infer::RowSteps;

namespace {

// Calls `use` for each request in turn, until it returns false.
template <typename Use>
bool each_request(const PassesRun& run, float* const* given, Use use) {
  for (std::int64_t at = 0; at < run.requests; ++at) {
    const auto* blocks = run.blocks ? run.blocks + at : nullptr;
    const std::int64_t candidates = run.candidates ? run.candidates[at] : 0;
    if (!use(PassesOfRequest{*run.passes, given, run.positions[at], candidates, blocks, nullptr}))
      return false;
  }
  return true;
}

}  // namespace

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

std::int32_t sharded_infer_passes(std::int32_t instruction_set, PassesRun* run) {
  std::vector<float*> given(run->given, run->given + run->passes->given_count);
  std::vector<std::int64_t> numbers(given.size());
  std::int64_t space = 0;
  each_request(*run, given.data(), [&](const PassesOfRequest& call) {
    space = std::max(space, sharded_infer::baseline::space_of(call));
    for (std::size_t at = 0; at < given.size(); ++at) numbers[at] += numbers_of(call, at);
    return true;
  });
  for (std::size_t at = 0; at < given.size(); ++at) {
    if (numbers[at] == run->numbers[at]) continue;
    run->memory = at, run->expected = numbers[at];
    return 3;
  }
  constexpr std::size_t kLine = 64;
  const std::size_t bytes = (space * sizeof(float) + kLine - 1) / kLine * kLine;
  const std::unique_ptr<float, decltype(&std::free)> memory(
      static_cast<float*>(std::aligned_alloc(kLine, bytes)), &std::free);
  if (!memory && bytes) return 1;
  const bool are_kept = each_request(*run, given.data(), [&](PassesOfRequest call) {
    call.space = memory.get();
    if (!SHARDED_INFER_FOR(instruction_set, run(call))) return false;
    for (std::size_t at = 0; at < given.size(); ++at) given[at] += numbers_of(call, at);
    return true;
  });
  return are_kept ? 0 : 2;
}
}
