// Settings and events of a server, and a text that two rooms answer with.
#pragma once
#include "abi/transport.h"

namespace sharded_infer::transport {

// Answer to a predict call that is refused before it is read, or decoded; Python's words too.
constexpr char kTooLate[] = "the deadline cannot be met: more waits than can be answered";

}  // namespace sharded_infer::transport
