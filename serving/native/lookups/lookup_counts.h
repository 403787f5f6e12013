// What lookups took, counted by all threads and read when the metrics are asked for.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

namespace sharded_infer::lookups {

// Of one lookup.
struct LookupCost {
  std::int64_t rows = 0, row_bytes = 0;  // that were read
  std::int64_t received = 0, sent = 0;   // bytes of its messages
  double seconds = 0.0;
};

class LookupCounts {
 public:
  // Each boundary is in the bucket that it ends; one more bucket has what is above all.
  LookupCounts(const double* boundaries, std::int64_t count)
      : boundaries_(boundaries, boundaries + count), buckets_(std::size_t(count) + 1) {}

  void add(const LookupCost& cost) {
    rows_.fetch_add(cost.rows, kOrder);
    row_bytes_.fetch_add(cost.row_bytes, kOrder);
    received_.fetch_add(cost.received, kOrder);
    sent_.fetch_add(cost.sent, kOrder);
    nanoseconds_.fetch_add(std::int64_t(1e9 * cost.seconds), kOrder);
    const auto bucket = std::lower_bound(boundaries_.begin(), boundaries_.end(), cost.seconds);
    buckets_[std::size_t(bucket - boundaries_.begin())].fetch_add(1, kOrder);
  }

  // Writes rows, their bytes, bytes received and sent, nanoseconds, and lookups by bucket.
  void read(std::int64_t* to) const {
    for (const auto* count : {&rows_, &row_bytes_, &received_, &sent_, &nanoseconds_})
      *to++ = count->load(kOrder);
    for (const auto& count : buckets_) *to++ = count.load(kOrder);
  }

 private:
  static constexpr auto kOrder = std::memory_order_relaxed;

  const std::vector<double> boundaries_;
  std::atomic<std::int64_t> rows_{0}, row_bytes_{0}, received_{0}, sent_{0}, nanoseconds_{0};
  std::vector<std::atomic<std::int64_t>> buckets_;
};

}  // namespace sharded_infer::lookups
