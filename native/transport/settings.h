// Settings and events of a server, and texts that several rooms answer with.
#pragma once
#include "abi/transport.h"

namespace sharded_infer::transport {

constexpr char kDraining[] = "the server is draining";  // DRAINING of serving/status.py
// Answer to a predict call that is refused before it is read, or decoded; Python's words too.
constexpr char kTooLate[] = "the deadline cannot be met: more waits than can be answered";

}  // namespace sharded_infer::transport
