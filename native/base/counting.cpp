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

void count_empty_bags(double* cell, const std::int64_t* lengths, std::int64_t bags,
                      const std::int64_t* repeats) {
  std::int64_t samples = 0;
  if (repeats != nullptr) {
    for (std::int64_t bag = 0; bag < bags; ++bag)
      if (lengths[bag] == 0) samples += repeats[bag];
  } else {
    // None is negative, so the sign of one less says it, which vectorises.
    for (std::int64_t bag = 0; bag < bags; ++bag)
      samples += static_cast<std::uint64_t>(lengths[bag] - 1) >> 63;
  }
  if (samples != 0) *cell += static_cast<double>(samples);
}

void count_unknown(double* cells, const std::int64_t* counts, std::int64_t tables) {
  for (std::int64_t table = 0; table < tables; ++table) {
    if (counts[table] == 0) continue;
    double before, after;
    __atomic_load(cells + table, &before, __ATOMIC_RELAXED);
    do {
      after = before + static_cast<double>(counts[table]);
    } while (!__atomic_compare_exchange(cells + table, &before, &after, true, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED));
  }
}

}  // namespace sharded_infer
