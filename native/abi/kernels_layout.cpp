// Sizes and offsets of structures, for Python; written by native/abi/generate.py.
// clang-format off
#include "abi/dense.h"
#include "abi/product.h"
#include "abi/exported.h"

#include <cstddef>
#include <cstdint>

extern "C" {

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

}  // extern "C"
