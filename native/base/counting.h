// Counting answered requests in a process's row of shared cells; see
// serving/metrics/request_counter.py.
#pragma once
#include <cstdint>

#include "abi/counting.h"

namespace sharded_infer {

void count_answered(double* cells, const AnsweredCells& where, const AnsweredRequest* requests,
                    std::int64_t count, double now);

// A group of a batch; see serving/metrics/lookups/empty_bags.py.
struct GroupBags {
  const std::int64_t* lengths;  // [features, bags]
  std::int64_t features, bags;
  const std::int64_t* repeats;  // [bags]: samples of each; null: `each`
  std::int64_t each;
};

// Adds the samples with an empty bag to each feature's cell; `where` has -1 for those not counted.
void count_empty_bags(double* cells, const std::int64_t* where, const GroupBags& group);

// Adds each table's unknown ids to its cell. Threads without the GIL may add to it meanwhile.
void count_unknown(double* cells, const std::int64_t* counts, std::int64_t tables);

}  // namespace sharded_infer
