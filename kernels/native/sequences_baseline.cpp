#include "attention.h"
#include "pair_layers.h"
#include "passes.h"
#include "row_steps.h"

#include <cmath>
#include <cstring>
#include <vector>
#if defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace sharded_infer {
namespace {
constexpr int kSumRows = 4, kTileLanes = 1;
#include "lanes_baseline.inc"
#include "lanes_unmasked.inc"
#include "tiles.inc"
#include "attention.inc"
#include "pair_layers.inc"
#include "row_steps.inc"
inline bool run_by_tables(const PairBiases&) { return false; }  // too few registers
#include "pair_biases.inc"
#include "passes.inc"
}  // namespace

std::int64_t attention_space(const Attention& attention) { return space_of(attention); }
std::int64_t pair_layers_space(const PairLayers& pairs) { return space_of(pairs); }
std::int64_t passes_space(const Passes& passes) { return space_of(passes); }

void attention_baseline(const Attention& attention) { run(attention); }
void pair_layers_baseline(const PairLayers& pairs) { run(pairs); }
void passes_baseline(const Passes& passes) { run(passes); }
void row_steps_baseline(const RowSteps& steps) { run(steps); }
std::int64_t row_panel_columns_baseline() { return kPanelColumns; }

}  // namespace sharded_infer
