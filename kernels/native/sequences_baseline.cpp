#include "attention.h"
#include "pair_layers.h"
#include "row_steps.h"

#include <cmath>
#include <cstring>
#if defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace sharded_infer {
namespace {
constexpr int kSumRows = 4, kTileLanes = 1;
#include "lanes_baseline.inc"
#include "tiles.inc"
#include "attention.inc"
#include "pair_layers.inc"
#include "row_steps.inc"
}  // namespace

std::int64_t attention_space(const Attention& attention) { return space_of(attention); }
std::int64_t pair_layers_space(const PairLayers& pairs) { return space_of(pairs); }

void attention_baseline(const Attention& attention) { run(attention); }
void pair_layers_baseline(const PairLayers& pairs) { run(pairs); }
void row_steps_baseline(const RowSteps& steps) { run(steps); }
std::int64_t row_panel_columns_baseline() { return kPanelColumns; }

}  // namespace sharded_infer
