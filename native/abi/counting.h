// Counting of answered requests in a process's row of shared cells; see base/counting.h.
#pragma once
#include <cstdint>

#include "abi/exported.h"

namespace sharded_infer {

constexpr std::int64_t kTimes = 6;

// A request as Python hands it over: all numbers are doubles.
struct AnsweredRequest {
  double samples;
  double seconds[kTimes];  // decode, queue, lookup, tower, encode, the whole
  double ids_outside;
};

struct Boundaries {
  const double* values;
  std::int64_t count;
};

// Where it is counted; all but the boundaries are numbers of cells.
struct AnsweredCells {
  std::int64_t ok, samples, last_request;
  std::int64_t sums[kTimes];
  // Less than everything: only what the protocol's statistics need, above this.
  std::int64_t with_histograms;
  std::int64_t worker_requests, ids_outside;
  std::int64_t buckets[kTimes];
  Boundaries boundaries[kTimes];
  // [features]: of samples with empty bags, -1: not counted; null: none is.
  const std::int64_t* empty_bags;
};

}  // namespace sharded_infer

extern "C" {
EXPORTED_KEEPING_GIL void sharded_infer_count_answered(
    double cells[], const sharded_infer::AnsweredCells* where,
    const sharded_infer::AnsweredRequest requests[], std::int64_t count, double now);

EXPORTED_KEEPING_GIL void sharded_infer_count_unknown(double cells[], const std::int64_t counts[],
                                                      std::int64_t tables);
}
