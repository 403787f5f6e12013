// Sizes and offsets of structures, for Python; written by native/abi/generate.py.
// clang-format off
#include "abi/device_bags.h"
#include "abi/merge.h"
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

EXPORTED extern const std::int64_t sharded_infer_layout_of_merge[];
const std::int64_t sharded_infer_layout_of_merge[] = {
    39, 0x1F49F945,
    0x3107A878, sizeof(sharded_infer::MergedGroup),
    offsetof(sharded_infer::MergedGroup, lengths),
    offsetof(sharded_infer::MergedGroup, values),
    offsetof(sharded_infer::MergedGroup, weights),
    0xA15204DB, sizeof(sharded_infer::Place),
    offsetof(sharded_infer::Place, bags),
    offsetof(sharded_infer::Place, ids),
    offsetof(sharded_infer::Place, count),
    offsetof(sharded_infer::Place, single),
    0xC15D22A3, sizeof(sharded_infer::Merge),
    offsetof(sharded_infer::Merge, requests),
    offsetof(sharded_infer::Merge, features),
    offsetof(sharded_infer::Merge, batch_sizes),
    offsetof(sharded_infer::Merge, layouts),
    offsetof(sharded_infer::Merge, order),
    offsetof(sharded_infer::Merge, single),
    offsetof(sharded_infer::Merge, shared),
    offsetof(sharded_infer::Merge, lengths),
    offsetof(sharded_infer::Merge, values),
    offsetof(sharded_infer::Merge, weights),
    offsetof(sharded_infer::Merge, places),
    offsetof(sharded_infer::Merge, id_counts),
    offsetof(sharded_infer::Merge, groups),
    0x1C6572D7, sizeof(sharded_infer::BagSource),
    offsetof(sharded_infer::BagSource, lengths),
    offsetof(sharded_infer::BagSource, values),
    offsetof(sharded_infer::BagSource, weights),
    offsetof(sharded_infer::BagSource, bags),
    0x54229F4D, sizeof(sharded_infer::Uniform),
    offsetof(sharded_infer::Uniform, requests),
    offsetof(sharded_infer::Uniform, features),
    offsetof(sharded_infer::Uniform, parts),
    offsetof(sharded_infer::Uniform, out),
};

}  // extern "C"
