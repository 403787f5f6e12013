// Limits of a serialized message's parts; see reader/message_size.h.
#pragma once
#include <cstdint>

#include "abi/exported.h"

namespace sharded_infer {

// Contents of a length-delimited field: a nested message (its number, at least 1), packed varints
// (0), or packed numbers of fixed size (their bytes, negative).
struct FieldRule {
  std::int32_t message;
  std::int32_t field;
  std::int32_t holds;
};

struct MessageLimits {
  std::int64_t fields;
  std::int64_t numbers;
  const FieldRule* rules;
  std::int64_t count;
};

enum Excess : std::int32_t { kWithinLimits = 0, kTooManyFields = 1, kTooManyNumbers = 2 };

}  // namespace sharded_infer

extern "C" {
EXPORTED_BOTH_WAYS sharded_infer::Excess sharded_infer_check_size(
    const sharded_infer::MessageLimits* limits, const std::uint8_t message[], std::int64_t size);
}
