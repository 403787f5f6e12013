// Sizes and offsets of structures, for Python; written by native/abi/generate.py.
// clang-format off
#include "abi/attention.h"
#include "abi/dense.h"
#include "abi/ids.h"
#include "abi/lookup.h"
#include "abi/lost_pages.h"
#include "abi/machine.h"
#include "abi/pair_biases.h"
#include "abi/pair_layers.h"
#include "abi/passes.h"
#include "abi/product.h"
#include "abi/row_steps.h"
#include "abi/tiers.h"
#include "abi/exported.h"

#include <cstddef>
#include <cstdint>

extern "C" {

EXPORTED extern const std::int64_t sharded_infer_layout_of_attention[];
const std::int64_t sharded_infer_layout_of_attention[] = {
    36, 0x827CE268,
    0x5D6D9D61, sizeof(sharded_infer::Attention),
    offsetof(sharded_infer::Attention, query),
    offsetof(sharded_infer::Attention, key),
    offsetof(sharded_infer::Attention, value),
    offsetof(sharded_infer::Attention, bias),
    offsetof(sharded_infer::Attention, mask),
    offsetof(sharded_infer::Attention, first),
    offsetof(sharded_infer::Attention, out),
    offsetof(sharded_infer::Attention, space),
    offsetof(sharded_infer::Attention, query_sample),
    offsetof(sharded_infer::Attention, query_head),
    offsetof(sharded_infer::Attention, query_row),
    offsetof(sharded_infer::Attention, key_sample),
    offsetof(sharded_infer::Attention, key_head),
    offsetof(sharded_infer::Attention, key_row),
    offsetof(sharded_infer::Attention, value_sample),
    offsetof(sharded_infer::Attention, value_head),
    offsetof(sharded_infer::Attention, value_row),
    offsetof(sharded_infer::Attention, bias_sample),
    offsetof(sharded_infer::Attention, bias_head),
    offsetof(sharded_infer::Attention, bias_row),
    offsetof(sharded_infer::Attention, mask_sample),
    offsetof(sharded_infer::Attention, mask_head),
    offsetof(sharded_infer::Attention, mask_row),
    offsetof(sharded_infer::Attention, samples),
    offsetof(sharded_infer::Attention, heads),
    offsetof(sharded_infer::Attention, queries),
    offsetof(sharded_infer::Attention, keys),
    offsetof(sharded_infer::Attention, width),
    offsetof(sharded_infer::Attention, value_width),
    offsetof(sharded_infer::Attention, scale),
    offsetof(sharded_infer::Attention, divisor),
    offsetof(sharded_infer::Attention, weights),
    offsetof(sharded_infer::Attention, causal),
};

EXPORTED extern const std::int64_t sharded_infer_layout_of_dense[];
const std::int64_t sharded_infer_layout_of_dense[] = {
    15, 0xF6CC1C23,
    0xCF675EB4, sizeof(sharded_infer::DenseStep),
    offsetof(sharded_infer::DenseStep, values),
    offsetof(sharded_infer::DenseStep, first),
    offsetof(sharded_infer::DenseStep, factor),
    offsetof(sharded_infer::DenseStep, inverse_scale),
    offsetof(sharded_infer::DenseStep, out),
    offsetof(sharded_infer::DenseStep, low),
    offsetof(sharded_infer::DenseStep, poison),
    offsetof(sharded_infer::DenseStep, rows),
    offsetof(sharded_infer::DenseStep, width),
    offsetof(sharded_infer::DenseStep, zero_point),
    offsetof(sharded_infer::DenseStep, factor_bf16),
    offsetof(sharded_infer::DenseStep, low_kind),
};

EXPORTED extern const std::int64_t sharded_infer_layout_of_ids[];
const std::int64_t sharded_infer_layout_of_ids[] = {
    12, 0x8D51E930,
    0xBB1139DA, sizeof(sharded_infer::IdIndex),
    offsetof(sharded_infer::IdIndex, buckets),
    offsetof(sharded_infer::IdIndex, home_buckets),
    offsetof(sharded_infer::IdIndex, table_rows),
    offsetof(sharded_infer::IdIndex, seed),
    0x176B885E, sizeof(sharded_infer::PendingIds),
    offsetof(sharded_infer::PendingIds, count),
    offsetof(sharded_infer::PendingIds, keys),
    offsetof(sharded_infer::PendingIds, rows),
};

EXPORTED extern const std::int64_t sharded_infer_layout_of_lookup[];
const std::int64_t sharded_infer_layout_of_lookup[] = {
    30, 0x0863AA7F,
    0xF15DFB16, sizeof(sharded_infer::RowOverlay),
    offsetof(sharded_infer::RowOverlay, groups),
    offsetof(sharded_infer::RowOverlay, changed),
    offsetof(sharded_infer::RowOverlay, before),
    offsetof(sharded_infer::RowOverlay, rows),
    offsetof(sharded_infer::RowOverlay, group_shift),
    offsetof(sharded_infer::RowOverlay, first_row),
    0x0FD38BCD, sizeof(sharded_infer::Feature),
    offsetof(sharded_infer::Feature, rows),
    offsetof(sharded_infer::Feature, row_bytes),
    offsetof(sharded_infer::Feature, dim),
    offsetof(sharded_infer::Feature, column),
    offsetof(sharded_infer::Feature, mean),
    offsetof(sharded_infer::Feature, overlay),
    0xBA619219, sizeof(sharded_infer::Lookup),
    offsetof(sharded_infer::Lookup, features),
    offsetof(sharded_infer::Lookup, feature_count),
    offsetof(sharded_infer::Lookup, batch),
    offsetof(sharded_infer::Lookup, values),
    offsetof(sharded_infer::Lookup, lengths),
    offsetof(sharded_infer::Lookup, weights),
    offsetof(sharded_infer::Lookup, out),
    offsetof(sharded_infer::Lookup, stride),
    offsetof(sharded_infer::Lookup, format),
    offsetof(sharded_infer::Lookup, out_bf16),
    offsetof(sharded_infer::Lookup, places),
};

EXPORTED extern const std::int64_t sharded_infer_layout_of_lost_pages[];
const std::int64_t sharded_infer_layout_of_lost_pages[] = {
    1, 0x65F782B8,
};

EXPORTED extern const std::int64_t sharded_infer_layout_of_machine[];
const std::int64_t sharded_infer_layout_of_machine[] = {
    1, 0x971562F0,
};

EXPORTED extern const std::int64_t sharded_infer_layout_of_pair_biases[];
const std::int64_t sharded_infer_layout_of_pair_biases[] = {
    18, 0x5BB84C84,
    0x9EFCA056, sizeof(sharded_infer::PairBiases),
    offsetof(sharded_infer::PairBiases, numbers),
    offsetof(sharded_infer::PairBiases, fixed),
    offsetof(sharded_infer::PairBiases, out),
    offsetof(sharded_infer::PairBiases, thresholds),
    offsetof(sharded_infer::PairBiases, values),
    offsetof(sharded_infer::PairBiases, fixed_stride),
    offsetof(sharded_infer::PairBiases, positions),
    offsetof(sharded_infer::PairBiases, cells),
    offsetof(sharded_infer::PairBiases, first_cell),
    offsetof(sharded_infer::PairBiases, shift),
    offsetof(sharded_infer::PairBiases, no_number),
    offsetof(sharded_infer::PairBiases, least),
    offsetof(sharded_infer::PairBiases, greatest),
    offsetof(sharded_infer::PairBiases, turned),
    offsetof(sharded_infer::PairBiases, causal),
};

EXPORTED extern const std::int64_t sharded_infer_layout_of_pair_layers[];
const std::int64_t sharded_infer_layout_of_pair_layers[] = {
    21, 0xB330DA22,
    0x74B32ED3, sizeof(sharded_infer::Layer),
    offsetof(sharded_infer::Layer, weight),
    offsetof(sharded_infer::Layer, bias),
    offsetof(sharded_infer::Layer, slope),
    offsetof(sharded_infer::Layer, inputs),
    offsetof(sharded_infer::Layer, outputs),
    offsetof(sharded_infer::Layer, activation),
    0xB9A6B110, sizeof(sharded_infer::PairLayers),
    offsetof(sharded_infer::PairLayers, positions),
    offsetof(sharded_infer::PairLayers, candidates),
    offsetof(sharded_infer::PairLayers, by_position),
    offsetof(sharded_infer::PairLayers, by_candidate),
    offsetof(sharded_infer::PairLayers, layers),
    offsetof(sharded_infer::PairLayers, out),
    offsetof(sharded_infer::PairLayers, space),
    offsetof(sharded_infer::PairLayers, count),
    offsetof(sharded_infer::PairLayers, length),
    offsetof(sharded_infer::PairLayers, layer_count),
};

EXPORTED extern const std::int64_t sharded_infer_layout_of_passes[];
const std::int64_t sharded_infer_layout_of_passes[] = {
    37, 0x4086BD3C,
    0x777636A1, sizeof(sharded_infer::PassMemory),
    offsetof(sharded_infer::PassMemory, numbers),
    offsetof(sharded_infer::PassMemory, rows),
    offsetof(sharded_infer::PassMemory, width),
    0x918966A5, sizeof(sharded_infer::PassOperand),
    offsetof(sharded_infer::PassOperand, memory),
    offsetof(sharded_infer::PassOperand, column),
    offsetof(sharded_infer::PassOperand, row),
    0xA4EDF8E6, sizeof(sharded_infer::RowsOfPass),
    offsetof(sharded_infer::RowsOfPass, steps),
    offsetof(sharded_infer::RowsOfPass, step_count),
    offsetof(sharded_infer::RowsOfPass, constants),
    offsetof(sharded_infer::RowsOfPass, constant_count),
    offsetof(sharded_infer::RowsOfPass, scratch_width),
    offsetof(sharded_infer::RowsOfPass, tile),
    0x8CE88520, sizeof(sharded_infer::Pass),
    offsetof(sharded_infer::Pass, operands),
    offsetof(sharded_infer::Pass, operand_count),
    offsetof(sharded_infer::Pass, details),
    offsetof(sharded_infer::Pass, kind),
    offsetof(sharded_infer::Pass, rows),
    0xD40E68D6, sizeof(sharded_infer::Passes),
    offsetof(sharded_infer::Passes, memories),
    offsetof(sharded_infer::Passes, memory_count),
    offsetof(sharded_infer::Passes, passes),
    offsetof(sharded_infer::Passes, pass_count),
    offsetof(sharded_infer::Passes, given),
    offsetof(sharded_infer::Passes, given_count),
    offsetof(sharded_infer::Passes, positions),
    offsetof(sharded_infer::Passes, candidates),
    offsetof(sharded_infer::Passes, space),
};

EXPORTED extern const std::int64_t sharded_infer_layout_of_product[];
const std::int64_t sharded_infer_layout_of_product[] = {
    13, 0x50519B47,
    0x4362CDB3, sizeof(sharded_infer::Product),
    offsetof(sharded_infer::Product, x),
    offsetof(sharded_infer::Product, weight),
    offsetof(sharded_infer::Product, offset),
    offsetof(sharded_infer::Product, scale),
    offsetof(sharded_infer::Product, bias),
    offsetof(sharded_infer::Product, poison),
    offsetof(sharded_infer::Product, row_bytes),
    offsetof(sharded_infer::Product, factors),
    offsetof(sharded_infer::Product, relu),
    offsetof(sharded_infer::Product, step),
};

EXPORTED extern const std::int64_t sharded_infer_layout_of_row_steps[];
const std::int64_t sharded_infer_layout_of_row_steps[] = {
    28, 0x26B0C651,
    0x29725FD9, sizeof(sharded_infer::StepMemory),
    offsetof(sharded_infer::StepMemory, numbers),
    offsetof(sharded_infer::StepMemory, stride),
    offsetof(sharded_infer::StepMemory, moves),
    0xACAAAA0E, sizeof(sharded_infer::StepColumns),
    offsetof(sharded_infer::StepColumns, memory),
    offsetof(sharded_infer::StepColumns, first),
    0x47F8C539, sizeof(sharded_infer::RowStep),
    offsetof(sharded_infer::RowStep, weight),
    offsetof(sharded_infer::RowStep, bias),
    offsetof(sharded_infer::RowStep, first),
    offsetof(sharded_infer::RowStep, second),
    offsetof(sharded_infer::RowStep, out),
    offsetof(sharded_infer::RowStep, inputs),
    offsetof(sharded_infer::RowStep, outputs),
    offsetof(sharded_infer::RowStep, epsilon),
    offsetof(sharded_infer::RowStep, kind),
    0x7370B380, sizeof(sharded_infer::RowSteps),
    offsetof(sharded_infer::RowSteps, memories),
    offsetof(sharded_infer::RowSteps, steps),
    offsetof(sharded_infer::RowSteps, step_count),
    offsetof(sharded_infer::RowSteps, rows),
    offsetof(sharded_infer::RowSteps, tile),
};

EXPORTED extern const std::int64_t sharded_infer_layout_of_tiers[];
const std::int64_t sharded_infer_layout_of_tiers[] = {
    29, 0x473CBA86,
    0xC188E754, sizeof(sharded_infer::TierSettings),
    offsetof(sharded_infer::TierSettings, descriptor),
    offsetof(sharded_infer::TierSettings, is_direct),
    offsetof(sharded_infer::TierSettings, offset),
    offsetof(sharded_infer::TierSettings, row_bytes),
    offsetof(sharded_infer::TierSettings, rows),
    offsetof(sharded_infer::TierSettings, hot_rows),
    offsetof(sharded_infer::TierSettings, cached_rows),
    0x23608359, sizeof(sharded_infer::TierCounts),
    offsetof(sharded_infer::TierCounts, hot),
    offsetof(sharded_infer::TierCounts, cached),
    offsetof(sharded_infer::TierCounts, missed),
    offsetof(sharded_infer::TierCounts, unplaced),
    offsetof(sharded_infer::TierCounts, reads),
    offsetof(sharded_infer::TierCounts, read_bytes),
    offsetof(sharded_infer::TierCounts, failed_reads),
    offsetof(sharded_infer::TierCounts, used_slots),
    offsetof(sharded_infer::TierCounts, nanoseconds),
    offsetof(sharded_infer::TierCounts, latencies),
    0xA02BB2EC, sizeof(sharded_infer::MissingRow),
    offsetof(sharded_infer::MissingRow, why),
    offsetof(sharded_infer::MissingRow, error),
    offsetof(sharded_infer::MissingRow, tier),
    offsetof(sharded_infer::MissingRow, row),
    offsetof(sharded_infer::MissingRow, count),
};

}  // extern "C"
