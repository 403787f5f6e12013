// Counts the parts of a serialized message, before protobuf or Python make an object of each.
#pragma once
#include "base/wire.h"

namespace sharded_infer {

// What a length-delimited field holds: a nested message (its number, at least 1), packed varints
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

// Field numbers and lengths may be of any size and padded. Nothing after malformed bytes counts;
// the contents of a group count as if there were no group.
Excess check_size(const MessageLimits& limits, Bytes message);

}  // namespace sharded_infer
