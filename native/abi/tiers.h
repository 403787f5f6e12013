// Rows in tiers, and lookups in them; see tiers/row_tier.h.
#pragma once
#include <cstdint>

#include "abi/exported.h"
#include "abi/lookup.h"

namespace sharded_infer {

// Bytes beside the rows, for each slot of a cache: 8 of its own, 12 of the index and 8 of the
// sketch.
constexpr std::int64_t kSlotBytes = 28;

// Reads of a process that are with the kernel at once.
constexpr std::int64_t kQueueDepth = 128;

struct TierSettings {
  std::int32_t descriptor;  // of the file; the tier closes it
  std::int32_t is_direct;   // it was opened past the page cache
  std::int64_t offset;      // of the first row, bytes
  std::int64_t row_bytes;
  std::int64_t rows;
  std::int64_t hot_rows;
  std::int64_t cached_rows;
};

constexpr std::int64_t kLatencies = 16;
// Seconds. Each boundary of latencies is twice the one before.
constexpr double kFirstLatency = 50e-6;

// Since the tier was made.
struct TierCounts {
  std::int64_t hot, cached, missed;  // ids by where their rows were
  std::int64_t unplaced;             // of the missed: rows without a slot
  std::int64_t reads, read_bytes, failed_reads;
  std::int64_t used_slots;   // now
  std::int64_t nanoseconds;  // of all reads, from asking to the end
  std::int64_t latencies[kLatencies + 1];
};

// Why rows are not there.
enum Missing : std::int32_t { kThere, kLate, kRefused, kFailed, kTruncated };
struct MissingRow {
  std::int32_t why;
  std::int32_t error;  // errno, of kFailed
  std::int64_t tier;   // number of the tier in the lookup
  std::int64_t row;    // the first one known
  std::int64_t count;  // rows that are not there, of kLate
};

}  // namespace sharded_infer

extern "C" {

// Null: there is too little memory, and the file is still the caller's.
EXPORTED void* sharded_infer_tier_open(const sharded_infer::TierSettings* settings);

// Lookups and reads keep what they use.
EXPORTED void sharded_infer_tier_close(void* tier);

// Reads hot rows; returns errno, or 0.
EXPORTED std::int32_t sharded_infer_tier_load(void* tier, std::int64_t first, std::int64_t count);
EXPORTED void sharded_infer_tier_counts(void* tier, sharded_infer::TierCounts* out);

// Reads of this process that wait or are with the kernel.
EXPORTED std::int64_t sharded_infer_tier_queued();

// The mechanism of this process's reads: `io_uring`, or `threads` where it is not allowed.
EXPORTED const char* sharded_infer_tier_reader();

EXPORTED void* sharded_infer_tier_lookup();
EXPORTED void sharded_infer_tier_find(void* lookup, void* tier, std::int64_t first_row,
                                      const sharded_infer::RowOverlay* overlay,
                                      const std::int64_t ids[], std::int64_t count,
                                      const std::uint8_t* places[]);
EXPORTED void sharded_infer_tier_submit(void* lookup);
EXPORTED void sharded_infer_tier_wait(void* lookup, double seconds, sharded_infer::MissingRow* out);
EXPORTED void sharded_infer_tier_release(void* lookup);
}
