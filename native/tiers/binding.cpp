// The C interface of tiers and their lookups, which Python calls through ctypes (without the GIL).
#include "row_tier.h"

#include <new>

using sharded_infer::RowTier;
using sharded_infer::TierLookup;

extern "C" {

void* sharded_infer_tier_open(const sharded_infer::TierSettings* settings) try {
  return new std::shared_ptr<RowTier>(std::make_shared<RowTier>(*settings));
} catch (const std::bad_alloc&) { return nullptr; }

void sharded_infer_tier_close(void* tier) { delete static_cast<std::shared_ptr<RowTier>*>(tier); }

std::int32_t sharded_infer_tier_load(void* tier, std::int64_t first, std::int64_t count) {
  return (*static_cast<std::shared_ptr<RowTier>*>(tier))->load(first, count);
}

void sharded_infer_tier_counts(void* tier, sharded_infer::TierCounts* out) {
  *out = (*static_cast<std::shared_ptr<RowTier>*>(tier))->counts();
}

std::int64_t sharded_infer_tier_queued() { return sharded_infer::block_reader().queued(); }

const char* sharded_infer_tier_reader() { return sharded_infer::block_reader().name(); }

void* sharded_infer_tier_lookup() { return new TierLookup; }

void sharded_infer_tier_find(void* lookup, void* tier, std::int64_t first_row,
                             const sharded_infer::RowOverlay* overlay, const std::int64_t* ids,
                             std::int64_t count, const std::uint8_t** places) {
  static_cast<TierLookup*>(lookup)->find(*static_cast<std::shared_ptr<RowTier>*>(tier), first_row,
                                         overlay, ids, count, places);
}

void sharded_infer_tier_submit(void* lookup) { static_cast<TierLookup*>(lookup)->submit(); }

void sharded_infer_tier_wait(void* lookup, double seconds, sharded_infer::MissingRow* out) {
  *out = static_cast<TierLookup*>(lookup)->wait(seconds);
}

void sharded_infer_tier_release(void* lookup) { delete static_cast<TierLookup*>(lookup); }
}
