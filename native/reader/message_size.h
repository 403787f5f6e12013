// Counts the parts of a serialized message, before protobuf or Python make an object of each.
#pragma once
#include "abi/message_size.h"
#include "base/wire.h"

namespace sharded_infer {

// Field numbers and lengths may be of any size and padded. Nothing after malformed bytes counts;
// the contents of a group count as if there were no group.
Excess check_size(const MessageLimits& limits, Bytes message);

}  // namespace sharded_infer
