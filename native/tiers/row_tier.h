// Rows of a table in three tiers: the first rows in memory, a cache of others, and all of them in a
// file.
//
//     arena: [hot rows | slots of the cache], in 2 MiB pages
//
//     find, for each id:
//         changed by an overlay: the overlay's row
//         row < hot rows: the arena's row of the same number
//         else the row's slot, pinned until the lookup ends; if it has none, memory of the lookup's
//         own
//     submit: one read for all missing rows that share blocks
//     wait:   until all rows are there, those too that other lookups have asked for
//
// A place is an address, so kernels read rows of all tiers alike. The first rows should be those
// that are used most.
#pragma once
#include "abi/tiers.h"
#include "lookup/row_overlay.h"
#include "block_reader.h"
#include "row_cache.h"

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace sharded_infer {

// What a lookup waits for; reads outlive lookups that have given up.
class Awaited {
 public:
  void add() { rows_.fetch_add(1, std::memory_order_relaxed); }
  void arrived() {
    if (rows_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    all_there_.notify_all();
  }
  void failed(const MissingRow& row);
  std::int64_t rows() const { return rows_.load(std::memory_order_acquire); }
  MissingRow wait(double seconds);

 private:
  std::atomic<std::int64_t> rows_{0};
  std::mutex mutex_;
  std::condition_variable all_there_;
  MissingRow failure_{kThere, 0, 0, 0, 0};
};

// A missing row and where it is to lie: in a slot, or in memory of its lookup (kNone).
struct RowToRead {
  std::int64_t row;
  std::uint8_t* to;
  std::uint32_t slot;
};

class RowTier : public std::enable_shared_from_this<RowTier> {
 public:
  // Throws std::bad_alloc; the file is still the caller's then.
  explicit RowTier(const TierSettings& settings);
  ~RowTier();
  RowTier(const RowTier&) = delete;
  RowTier& operator=(const RowTier&) = delete;

  // Reads hot rows one after another. 0, or errno; ENODATA: the file is too short.
  int load(std::int64_t first, std::int64_t count);

  TierCounts counts() const;

 private:
  friend class TierLookup;
  friend class RowsRead;

  // Who waits for a row, and as which tier of its lookup.
  struct Waiting {
    std::shared_ptr<Awaited> awaited;
    std::int64_t tier;
  };

  std::uint8_t* slot(std::uint32_t number) const {
    return arena_ + (settings_.hot_rows + number) * settings_.row_bytes;
  }
  std::int64_t begin_of(std::int64_t row) const {
    return settings_.offset + row * settings_.row_bytes;
  }
  bool shares_block(std::int64_t row, std::int64_t next) const;
  void ended(const std::vector<RowToRead>& rows, const MissingRow& failure,
             const Waiting& unplaced);
  void forget_other_process();

  const TierSettings settings_;
  std::uint8_t* arena_ = nullptr;
  std::size_t arena_bytes_ = 0;

  std::mutex mutex_;  // of all below
  RowCache cache_;
  std::unordered_map<std::uint32_t, std::vector<Waiting>> waiting_;  // by slot
  int process_;

  struct Counters {
    std::atomic<std::int64_t> hot{0}, cached{0}, missed{0}, unplaced{0}, reads{0}, read_bytes{0},
        failed_reads{0}, used_slots{0}, nanoseconds{0};
    std::atomic<std::int64_t> latencies[kLatencies + 1] = {};
  } counted_;
};

// The rows of one fused lookup; one thread uses it.
class TierLookup {
 public:
  TierLookup() : awaited_(std::make_shared<Awaited>()), unplaced_(std::make_shared<Memories>()) {}
  ~TierLookup();
  TierLookup(const TierLookup&) = delete;
  TierLookup& operator=(const TierLookup&) = delete;

  // Writes where the rows of ids lie, or will lie once they have been awaited.
  // first_row: of the tier, where ids begin; overlay: of rows that count as the ids do, or null.
  void find(const std::shared_ptr<RowTier>& tier, std::int64_t first_row, const RowOverlay* overlay,
            const std::int64_t* ids, std::int64_t count, const std::uint8_t** places);

  // Reads what is missing, unless the disk has stalled.
  void submit();

  MissingRow wait(double seconds) { return awaited_->wait(seconds); }

 private:
  using Memories = std::vector<std::unique_ptr<std::uint8_t[]>>;
  static constexpr std::int64_t kBlock = 256;

  struct Part {
    std::shared_ptr<RowTier> tier;
    std::vector<std::uint32_t> pinned;
    std::vector<RowToRead> missing;
  };

  void find_cold(std::int64_t number, const std::int64_t* rows, const std::int64_t* positions,
                 std::int64_t count, const std::uint8_t** places);
  std::uint8_t* own_memory(std::int64_t row_bytes);
  void refuse();

  std::vector<Part> parts_;
  std::shared_ptr<Awaited> awaited_;
  std::shared_ptr<Memories> unplaced_;
  std::int64_t left_bytes_ = 0;  // of the last memory
};

}  // namespace sharded_infer
