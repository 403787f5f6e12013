// Lookups of a shard host that stay in compiled code from their message to their answer.
//
//     read the message, find the share that it names
//     for each group: widen lengths and ids, and check them; map raw ids to rows
//     for each group: pool the bags into the answer
//     look whether a mapped file has lost bytes meanwhile
//
// What is unusual, or must be refused, is left to Python, which alone words refusals.
#pragma once
#include "transport/call.h"
#include "share.h"

namespace sharded_infer::lookups {

// The answer to a LookupRequest; null: it is Python's.
transport::Answer* answer_lookup(Shares& shares, Bytes message);

}  // namespace sharded_infer::lookups
