#include "row_tier.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace sharded_infer {
namespace {

// A read of rows that lie beside each other is no longer than this.
constexpr std::int64_t kMostReadBytes = 64 * 1024;
constexpr std::int64_t kOwnMemoryBytes = 64 * 1024;

}  // namespace

// Rows of one tier that are read together, and what they are read into.
class RowsRead : public BlockRead {
 public:
  RowsRead(std::shared_ptr<RowTier> tier, std::vector<RowToRead> rows, RowTier::Waiting unplaced,
           std::shared_ptr<void> memory)
      : BlockRead({tier->settings_.descriptor, tier->settings_.is_direct != 0},
                  first_byte(*tier, rows), last_byte(*tier, rows) - first_byte(*tier, rows)),
        tier_(std::move(tier)),
        rows_(std::move(rows)),
        unplaced_(std::move(unplaced)),
        memory_(std::move(memory)) {}

  void finished(int error) override {
    MissingRow failure{kThere, error, 0, rows_.front().row, 0};
    if (error != 0) failure.why = kFailed;
    const auto row_bytes = static_cast<std::size_t>(tier_->settings_.row_bytes);
    for (const RowToRead& row : rows_) {
      const std::int64_t begin = tier_->begin_of(row.row) - offset;
      if (failure.why == kThere && begin + tier_->settings_.row_bytes > length) {
        failure.why = kTruncated;
        failure.row = row.row;
      }
      if (failure.why == kThere) std::memcpy(row.to, buffer + begin, row_bytes);
    }
    count(failure.why != kThere);
    tier_->ended(rows_, failure, unplaced_);
  }

 private:
  static std::int64_t first_byte(const RowTier& tier, const std::vector<RowToRead>& rows) {
    return block_of(tier.begin_of(rows.front().row));
  }
  static std::int64_t last_byte(const RowTier& tier, const std::vector<RowToRead>& rows) {
    return block_of(tier.begin_of(rows.back().row + 1) + kBlockBytes - 1);
  }

  void count(bool has_failed) const {
    RowTier::Counters& counted = tier_->counted_;
    const double seconds = std::chrono::duration<double>(Clock::now() - asked).count();
    int bucket = 0;
    for (double boundary = kFirstLatency; bucket < kLatencies && seconds > boundary; boundary *= 2)
      ++bucket;
    counted.latencies[bucket].fetch_add(1, std::memory_order_relaxed);
    counted.nanoseconds.fetch_add(std::llround(seconds * 1e9), std::memory_order_relaxed);
    counted.reads.fetch_add(1, std::memory_order_relaxed);
    counted.read_bytes.fetch_add(length, std::memory_order_relaxed);
    counted.failed_reads.fetch_add(has_failed, std::memory_order_relaxed);
  }

  const std::shared_ptr<RowTier> tier_;
  const std::vector<RowToRead> rows_;
  const RowTier::Waiting unplaced_;
  const std::shared_ptr<void> memory_;
};

void Awaited::failed(const MissingRow& row) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (failure_.why == kThere) failure_ = row;
    all_there_.notify_all();
  }
  arrived();
}

MissingRow Awaited::wait(double seconds) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto until = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                        std::chrono::duration<double>(seconds));
  const auto done = [&] { return rows() == 0 || failure_.why != kThere; };
  if (!all_there_.wait_until(lock, until, done)) return {kLate, 0, 0, 0, rows()};
  return failure_;
}

TierLookup::~TierLookup() {
  refuse();
  for (Part& part : parts_) {
    if (part.pinned.empty()) continue;
    const std::lock_guard<std::mutex> lock(part.tier->mutex_);
    for (const std::uint32_t slot : part.pinned) part.tier->cache_.unpin(slot);
  }
}

void TierLookup::find(const std::shared_ptr<RowTier>& tier, std::int64_t first_row,
                      const RowOverlay* overlay, const std::int64_t* ids, std::int64_t count,
                      const std::uint8_t** places) {
  parts_.push_back({tier, {}, {}});
  const std::int64_t hot_rows = tier->settings_.hot_rows, row_bytes = tier->settings_.row_bytes;
  std::int64_t rows[kBlock], positions[kBlock], cold = 0, all_cold = 0, changed = 0;
  const auto take = [&] {
    find_cold(static_cast<std::int64_t>(parts_.size()) - 1, rows, positions, cold, places);
    all_cold += cold;
    cold = 0;
  };
  for (std::int64_t at = 0; at < count; ++at) {
    if (overlay != nullptr)
      if (const std::uint8_t* const row = overlay->find(ids[at])) {
        places[at] = row;
        ++changed;
        continue;
      }
    const std::int64_t row = first_row + ids[at];
    if (row < hot_rows) {
      places[at] = tier->arena_ + row * row_bytes;
      continue;
    }
    rows[cold] = row;
    positions[cold] = at;
    if (++cold == kBlock) take();
  }
  if (cold != 0) take();
  tier->counted_.hot.fetch_add(count - changed - all_cold, std::memory_order_relaxed);
}

void TierLookup::find_cold(std::int64_t number, const std::int64_t* rows,
                           const std::int64_t* positions, std::int64_t count,
                           const std::uint8_t** places) {
  Part& part = parts_[static_cast<std::size_t>(number)];
  RowTier& tier = *part.tier;
  std::uint64_t hashes[kBlock];
  for (std::int64_t at = 0; at < count; ++at) {
    hashes[at] = hash_of_row(static_cast<std::uint32_t>(rows[at]));
    tier.cache_.fetch(hashes[at]);
  }
  std::int64_t held = 0, unplaced = 0;
  std::uint32_t used = 0;
  {
    const std::lock_guard<std::mutex> lock(tier.mutex_);
    tier.forget_other_process();
    for (std::int64_t at = 0; at < count; ++at) {
      const RowCache::Found found =
          tier.cache_.find(static_cast<std::uint32_t>(rows[at]), hashes[at]);
      std::uint8_t* const to = found.slot == RowCache::kNone ? own_memory(tier.settings_.row_bytes)
                                                             : tier.slot(found.slot);
      places[positions[at]] = to;
      if (found.slot != RowCache::kNone) part.pinned.push_back(found.slot);
      if (found.state == RowCache::kHeld) {
        ++held;
        continue;
      }
      awaited_->add();
      if (found.state == RowCache::kNoSlot) {
        ++unplaced;
      } else {
        tier.waiting_[found.slot].push_back({awaited_, number});
      }
      if (found.state != RowCache::kBeingRead) part.missing.push_back({rows[at], to, found.slot});
    }
    used = tier.cache_.used();
  }
  tier.counted_.cached.fetch_add(held, std::memory_order_relaxed);
  tier.counted_.missed.fetch_add(count - held, std::memory_order_relaxed);
  tier.counted_.unplaced.fetch_add(unplaced, std::memory_order_relaxed);
  tier.counted_.used_slots.store(used, std::memory_order_relaxed);
}

std::uint8_t* TierLookup::own_memory(std::int64_t row_bytes) {
  if (left_bytes_ < row_bytes) {
    const std::int64_t bytes = std::max(kOwnMemoryBytes, row_bytes);
    unplaced_->emplace_back(new std::uint8_t[static_cast<std::size_t>(bytes)]);
    left_bytes_ = bytes;
  }
  left_bytes_ -= row_bytes;
  return unplaced_->back().get() + left_bytes_;
}

void TierLookup::submit() {
  if (awaited_->rows() == 0) return;
  BlockReader& reader = block_reader();
  if (reader.refuses()) {
    refuse();
    // Others' reads, too, are with a disk that does not answer.
    awaited_->add();
    return awaited_->failed({kRefused, 0, 0, 0, 0});
  }
  std::vector<std::unique_ptr<BlockRead>> reads;
  for (std::size_t number = 0; number < parts_.size(); ++number) {
    Part& part = parts_[number];
    const RowTier& tier = *part.tier;
    std::vector<RowToRead>& missing = part.missing;
    std::sort(missing.begin(), missing.end(),
              [](const RowToRead& one, const RowToRead& other) { return one.row < other.row; });
    for (auto first = missing.begin(); first != missing.end();) {
      auto last = first + 1;
      while (last != missing.end() && tier.shares_block((last - 1)->row, last->row) &&
             tier.begin_of(last->row + 1) - tier.begin_of(first->row) <= kMostReadBytes)
        ++last;
      const RowTier::Waiting self{awaited_, static_cast<std::int64_t>(number)};
      reads.push_back(std::make_unique<RowsRead>(part.tier, std::vector<RowToRead>(first, last),
                                                 self, unplaced_));
      first = last;
    }
    missing.clear();
  }
  reader.start(std::move(reads));
}

void TierLookup::refuse() {
  for (std::size_t number = 0; number < parts_.size(); ++number) {
    std::vector<RowToRead>& missing = parts_[number].missing;
    if (missing.empty()) continue;
    const RowTier::Waiting self{awaited_, static_cast<std::int64_t>(number)};
    parts_[number].tier->ended(missing, {kRefused, 0, 0, missing.front().row, 0}, self);
    missing.clear();
  }
}

}  // namespace sharded_infer
