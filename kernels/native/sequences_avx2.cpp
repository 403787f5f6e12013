#if defined(__x86_64__)
#include "attention.h"
#include "pair_layers.h"
#include "passes.h"
#include "row_steps.h"
#include "target.h"

#include <cmath>
#include <cstring>
#include <immintrin.h>
#include <vector>

SHARDED_INFER_BEGIN_TARGET(SHARDED_INFER_AVX2)

namespace sharded_infer {
namespace {
constexpr int kSumRows = 6, kTileLanes = 1;
#include "lanes_avx2.inc"
#include "lanes_x86.inc"
#include "lanes_unmasked.inc"
#include "tiles.inc"
#include "attention.inc"
#include "pair_layers.inc"
#include "row_steps.inc"
inline bool run_by_tables(const PairBiases&) { return false; }  // too few registers
#include "pair_biases.inc"
#include "passes.inc"
}  // namespace

void attention_avx2(const Attention& attention) { run(attention); }
void pair_layers_avx2(const PairLayers& pairs) { run(pairs); }
void passes_avx2(const Passes& passes) { run(passes); }
void row_steps_avx2(const RowSteps& steps) { run(steps); }
std::int64_t row_panel_columns_avx2() { return kPanelColumns; }

}  // namespace sharded_infer

SHARDED_INFER_END_TARGET
#endif
