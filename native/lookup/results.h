// Results of the parts of a lookup, and their columns of the output.
#pragma once
#include "abi/lookup_run.h"

namespace sharded_infer {

// Sets the columns to zero that parts are added to.
void clear_sums(const LookupGroup& group);

// Writes or adds a result. Returns the rows of the output that repeats ask for.
std::int64_t write_result(const LookupGroup& group, const LookupResult& result);

// Multiplies sums by the rounded reciprocals of their bags' lengths. Returns as `write_result`.
std::int64_t divide_means(const LookupGroup& group);

}  // namespace sharded_infer
