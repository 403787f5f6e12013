// Counting answered requests in a process's row of shared cells; see
// serving/metrics/request_counter.py.
#pragma once
#include <cstdint>

#include "abi/counting.h"

namespace sharded_infer {

void count_answered(double* cells, const AnsweredCells& where, const AnsweredRequest* requests,
                    std::int64_t count, double now);

// Adds the samples with an empty bag of a feature to a cell. `repeats` are the samples of each bag;
// null: one.
void count_empty_bags(double* cell, const std::int64_t* lengths, std::int64_t bags,
                      const std::int64_t* repeats);

// Adds each table's unknown ids to its cell. Threads without the GIL may add to it meanwhile.
void count_unknown(double* cells, const std::int64_t* counts, std::int64_t tables);

}  // namespace sharded_infer
