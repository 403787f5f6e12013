// Sizes and offsets of structures, for Python; written by native/abi/generate.py.
// clang-format off
#include "abi/encode.h"
#include "abi/exported.h"

#include <cstddef>
#include <cstdint>

extern "C" {

EXPORTED extern const std::int64_t sharded_infer_layout_of_encode[];
const std::int64_t sharded_infer_layout_of_encode[] = {
    13, 0xC058C915,
    0xC6D4D7C8, sizeof(sharded_infer::Encoding),
    offsetof(sharded_infer::Encoding, rows),
    offsetof(sharded_infer::Encoding, count),
    offsetof(sharded_infer::Encoding, dim),
    offsetof(sharded_infer::Encoding, bits),
    offsetof(sharded_infer::Encoding, clip),
    offsetof(sharded_infer::Encoding, stored),
    offsetof(sharded_infer::Encoding, squared_errors),
    offsetof(sharded_infer::Encoding, minmax_errors),
    offsetof(sharded_infer::Encoding, squares),
    offsetof(sharded_infer::Encoding, max_errors),
};

}  // extern "C"
