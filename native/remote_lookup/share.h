// A shard host's share of one version: the stored rows of its pieces, where compiled code finds
// them.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "abi/shares.h"
#include "lookup/row_overlay.h"
#include "reader/raw_ids.h"
#include "base/wire.h"
#include "lookup_request.h"

namespace sharded_infer::lookups {

// What one lookup took.
struct LookupCost {
  std::int64_t rows = 0, row_bytes = 0;  // that were read
  std::int64_t received = 0, sent = 0;   // bytes of its messages
  double seconds = 0.0;
};

// Counted by all threads, and read when the metrics are asked for.
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

inline bool Watch::is_whole() const {
  // Reading a byte that is lost sets the mark; where it was zero, it reads as it did before.
  return *place == std::uint8_t(byte) && *lost == 0;
}

inline bool Piece::is_whole() const {
  for (std::int64_t at = 0; at < watch_count; ++at)
    if (!watches[at].is_whole()) return false;
  return true;
}

inline Feature Piece::feature(std::int64_t column) const {
  return {rows, row_bytes, columns, column, mean, overlay};
}

inline const std::uint8_t* Piece::row_of(std::int64_t id) const { return feature(0).row_of(id); }

struct Share {
  explicit Share(const ShareSettings& settings)
      : model(settings.model),
        version(settings.version),
        manifest(settings.manifest),
        share(settings.share),
        pieces(settings.pieces, settings.pieces + settings.piece_count),
        most_entries(settings.most_entries),
        most_answer_bytes(settings.most_answer_bytes),
        run(settings.run),
        instruction_set(settings.instruction_set) {}

  const std::string model;
  const std::uint64_t version, manifest, share;
  const std::vector<Piece> pieces;
  const std::int64_t most_entries, most_answer_bytes;
  const RunLookup run;
  const std::int32_t instruction_set;
};

// The shares that lookups may name. Thread-safe.
class Shares {
 public:
  // Boundaries of the times of lookups, in seconds.
  Shares(const double* boundaries, std::int64_t count) : counts(boundaries, count) {}

  using Held = std::shared_ptr<const Share>;

  const Share* add(const ShareSettings& settings) {
    Held share = std::make_shared<const Share>(settings);
    const std::lock_guard<std::mutex> lock(lock_);
    shares_.push_back(share);
    return share.get();
  }

  // No lookup finds it any more. Returns when none uses it.
  void drop(const Share* share);

  Held find(const LookupRequest& asked) const {
    const std::lock_guard<std::mutex> lock(lock_);
    for (const Held& one : shares_)
      if (one->version == asked.version && one->manifest == asked.manifest &&
          (asked.share == 0 || one->share == asked.share) && is(asked.model, one->model.c_str()))
        return one;
    return nullptr;
  }

  LookupCounts counts;  // of lookups that were answered here

 private:
  mutable std::mutex lock_;
  std::vector<Held> shares_;
};

}  // namespace sharded_infer::lookups
