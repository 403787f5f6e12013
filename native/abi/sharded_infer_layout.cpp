// Sizes and offsets of structures, for Python; written by native/abi/generate.py.
// clang-format off
#include "abi/device_bags.h"
#include "abi/exported.h"

#include <cstddef>
#include <cstdint>

extern "C" {

EXPORTED extern const std::int64_t sharded_infer_layout_of_device_bags[];
const std::int64_t sharded_infer_layout_of_device_bags[] = {
    16, 0x7587843A,
    0x6D524350, sizeof(sharded_infer::SourceGroup),
    offsetof(sharded_infer::SourceGroup, lengths),
    offsetof(sharded_infer::SourceGroup, values),
    offsetof(sharded_infer::SourceGroup, weights),
    offsetof(sharded_infer::SourceGroup, features),
    offsetof(sharded_infer::SourceGroup, bags),
    0xB8858122, sizeof(sharded_infer::DeviceBags),
    offsetof(sharded_infer::DeviceBags, features),
    offsetof(sharded_infer::DeviceBags, bucket),
    offsetof(sharded_infer::DeviceBags, offsets),
    offsetof(sharded_infer::DeviceBags, values),
    offsetof(sharded_infer::DeviceBags, id_bytes),
    offsetof(sharded_infer::DeviceBags, weights),
};

}  // extern "C"
