// Sizes and offsets of structures, for Python; written by native/abi/generate.py.
// clang-format off
#include "abi/attention.h"
#include "abi/dense.h"
#include "abi/pair_biases.h"
#include "abi/pair_layers.h"
#include "abi/passes.h"
#include "abi/product.h"
#include "abi/row_steps.h"
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

}  // extern "C"
