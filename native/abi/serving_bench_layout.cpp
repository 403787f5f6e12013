// Sizes and offsets of structures, for Python; written by native/abi/generate.py.
// clang-format off
#include "abi/load.h"
#include "abi/exported.h"

#include <cstddef>
#include <cstdint>

extern "C" {

EXPORTED extern const std::int64_t sharded_infer_layout_of_load[];
const std::int64_t sharded_infer_layout_of_load[] = {
    43, 0x4B599DAF,
    0x1B3204B6, sizeof(sharded_infer::load::Settings),
    offsetof(sharded_infer::load::Settings, address),
    offsetof(sharded_infer::load::Settings, port),
    offsetof(sharded_infer::load::Settings, authority),
    offsetof(sharded_infer::load::Settings, path),
    offsetof(sharded_infer::load::Settings, user_agent),
    offsetof(sharded_infer::load::Settings, messages),
    offsetof(sharded_infer::load::Settings, offsets),
    offsetof(sharded_infer::load::Settings, message_count),
    offsetof(sharded_infer::load::Settings, schedule),
    offsetof(sharded_infer::load::Settings, call_count),
    offsetof(sharded_infer::load::Settings, concurrency),
    offsetof(sharded_infer::load::Settings, seconds),
    offsetof(sharded_infer::load::Settings, deadline_seconds),
    offsetof(sharded_infer::load::Settings, drain_seconds),
    offsetof(sharded_infer::load::Settings, connect_seconds),
    offsetof(sharded_infer::load::Settings, connections),
    offsetof(sharded_infer::load::Settings, keep_responses),
    offsetof(sharded_infer::load::Settings, authorization),
    0xEBE5224F, sizeof(sharded_infer::load::Call),
    offsetof(sharded_infer::load::Call, scheduled),
    offsetof(sharded_infer::load::Call, taken),
    offsetof(sharded_infer::load::Call, sent),
    offsetof(sharded_infer::load::Call, latency),
    offsetof(sharded_infer::load::Call, message),
    offsetof(sharded_infer::load::Call, response_bytes),
    offsetof(sharded_infer::load::Call, slot),
    offsetof(sharded_infer::load::Call, code),
    offsetof(sharded_infer::load::Call, refusals),
    offsetof(sharded_infer::load::Call, done),
    0x19DFA24C, sizeof(sharded_infer::load::Link),
    offsetof(sharded_infer::load::Link, calls),
    offsetof(sharded_infer::load::Link, reconnects),
    0x3C81CCF2, sizeof(sharded_infer::load::Report),
    offsetof(sharded_infer::load::Report, calls),
    offsetof(sharded_infer::load::Report, call_count),
    offsetof(sharded_infer::load::Report, links),
    offsetof(sharded_infer::load::Report, seconds),
};

}  // extern "C"
