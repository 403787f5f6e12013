#include "counting.h"

#include <algorithm>

namespace sharded_infer {

void count_answered(double* cells, const AnsweredCells& where, const AnsweredRequest* requests,
                    std::int64_t count, double now) {
  for (std::int64_t r = 0; r < count; ++r) {
    const AnsweredRequest& request = requests[r];
    cells[where.ok] += 1.0;
    cells[where.samples] += request.samples;
    for (int t = 0; t < kTimes; ++t) cells[where.sums[t]] += request.seconds[t];
    if (!where.with_histograms) continue;
    cells[where.worker_requests] += 1.0;
    cells[where.ids_outside] += request.ids_outside;
    for (int t = 0; t < kTimes; ++t) {
      // A boundary is included in its bucket.
      const Boundaries& b = where.boundaries[t];
      const double* at = std::lower_bound(b.values, b.values + b.count, request.seconds[t]);
      cells[where.buckets[t] + (at - b.values)] += 1.0;
    }
  }
  cells[where.last_request] = now;
}

}  // namespace sharded_infer
