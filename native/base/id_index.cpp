#include "id_index.h"

#include "prefetch.h"

#include <algorithm>
#include <deque>

namespace sharded_infer {
namespace {

// Ids whose buckets are fetched before they are searched.
constexpr std::int64_t kIdsAhead = 64;
// Ids whose search goes on in the next bucket, gathered so that those are fetched together.
constexpr std::int64_t kMostGoingOn = 32;

struct Search {
  const std::uint8_t* bucket;
  std::uint64_t hash;
};

struct GoingOn {
  const std::uint8_t* bucket;
  std::int64_t at;
};

// A bit for each used slot that has the key, and the bucket's last word.
inline std::uint32_t slots_with(const std::uint8_t* bucket, std::uint64_t key,
                                std::uint32_t* last) {
  std::uint64_t keys[kSlots];
  std::memcpy(keys, bucket, sizeof keys);
  std::memcpy(last, bucket + kBucketBytes - 4, 4);
  std::uint32_t found = 0;
  for (std::int64_t slot = 0; slot < kSlots; ++slot)
    found |= static_cast<std::uint32_t>(keys[slot] == key) << slot;
  return found & ((1u << (*last & 7)) - 1);
}

// The row of the first slot that is set; -1: none is, or the row lies outside the table.
inline std::int64_t row_at(const std::uint8_t* bucket, std::uint32_t found,
                           std::uint64_t table_rows) {
  std::uint32_t row;
  // Without a slot this reads the last word.
  const int slot = __builtin_ctz(found | 1u << kSlots);
  std::memcpy(&row, bucket + 8 * kSlots + 4 * slot, 4);
  return found != 0 && row < table_rows ? static_cast<std::int64_t>(row) : -1;
}

void go_on(const IdIndex& index, const std::int64_t* ids, GoingOn* going, std::int64_t count,
           std::int64_t* rows, bool into_first) {
  for (std::int64_t step = 1; count > 0 && step <= kMostSteps; ++step) {
    std::int64_t left = 0;
    for (std::int64_t each = 0; each < count; ++each) {
      const GoingOn now = going[each];
      const std::uint64_t key = static_cast<std::uint64_t>(ids[now.at]);
      std::uint32_t last;
      const std::uint32_t found = slots_with(now.bucket, key, &last);
      rows[now.at] = row_at(now.bucket, found, index.table_rows);
      if (found || !(last & filter_bit(hash_of_id(key, index.seed)))) continue;
      going[left++] = {now.bucket + kBucketBytes, now.at};
      if (step < kMostSteps) fetch(now.bucket + kBucketBytes, kLine, into_first);
    }
    count = left;
  }
}

}  // namespace

void rows_of_ids(const IdIndex& index, const std::int64_t* ids, std::int64_t count,
                 std::int64_t* rows) {
  const bool into_first = fetches_into_first_cache();
  Search ahead[kIdsAhead];
  GoingOn going[kMostGoingOn];
  std::int64_t going_on = 0;
  const auto start = [&](std::int64_t at) {
    const std::uint64_t hash = hash_of_id(static_cast<std::uint64_t>(ids[at]), index.seed);
    const std::uint8_t* bucket =
        index.buckets + home_of_hash(hash, index.home_buckets) * kBucketBytes;
    fetch(bucket, kLine, into_first);
    ahead[at % kIdsAhead] = {bucket, hash};
  };
  for (std::int64_t at = 0; at < std::min(kIdsAhead, count); ++at) start(at);
  for (std::int64_t at = 0; at < count; ++at) {
    const Search now = ahead[at % kIdsAhead];
    if (at + kIdsAhead < count) start(at + kIdsAhead);
    std::uint32_t last;
    const std::uint32_t found = slots_with(now.bucket, static_cast<std::uint64_t>(ids[at]), &last);
    rows[at] = row_at(now.bucket, found, index.table_rows);
    if (found || !(last & filter_bit(now.hash))) continue;
    fetch(now.bucket + kBucketBytes, kLine, into_first);
    going[going_on++] = {now.bucket + kBucketBytes, at};
    if (going_on == kMostGoingOn) {
      go_on(index, ids, going, going_on, rows, into_first);
      going_on = 0;
    }
  }
  go_on(index, ids, going, going_on, rows, into_first);
}

std::int32_t place_ids(const IdIndex& index, std::uint64_t first, std::int64_t bucket_count,
                       const std::uint64_t* keys, const std::uint32_t* rows, std::int64_t key_count,
                       PendingIds* pending, std::uint8_t* out) {
  struct Waiting {
    std::uint64_t key, hash;
    std::uint32_t row;
  };
  std::deque<Waiting> waiting;
  for (std::int64_t each = 0; each < pending->count; ++each)
    waiting.push_back(
        {pending->keys[each], hash_of_id(pending->keys[each], index.seed), pending->rows[each]});
  std::int64_t next = 0;
  for (std::uint64_t bucket = first; bucket < first + bucket_count; ++bucket, out += kBucketBytes) {
    std::uint32_t used = 0;
    std::memset(out, 0, kBucketBytes);
    const auto put = [&](std::uint64_t key, std::uint32_t row) {
      std::memcpy(out + 8 * used, &key, 8);
      std::memcpy(out + 8 * kSlots + 4 * used, &row, 4);
      ++used;
    };
    const std::size_t earlier = waiting.size();
    for (; next < key_count; ++next) {
      const std::uint64_t hash = hash_of_id(keys[next], index.seed);
      if (home_of_hash(hash, index.home_buckets) != bucket) break;
      if (used < kSlots)
        put(keys[next], rows[next]);
      else
        waiting.push_back({keys[next], hash, rows[next]});
    }
    for (std::size_t each = 0; each < earlier && used < kSlots; ++each) {
      put(waiting.front().key, waiting.front().row);
      waiting.pop_front();
    }
    if (waiting.size() > static_cast<std::size_t>(kMostPending)) return 1;
    std::uint32_t last = used;
    for (const Waiting& one : waiting) last |= filter_bit(one.hash);
    if (!waiting.empty() &&
        bucket - home_of_hash(waiting.front().hash, index.home_buckets) >= kMostSteps)
      return 1;
    std::memcpy(out + kBucketBytes - 4, &last, 4);
  }
  if (next < key_count) return 1;
  pending->count = static_cast<std::int64_t>(waiting.size());
  for (std::int64_t each = 0; each < pending->count; ++each) {
    pending->keys[each] = waiting[each].key;
    pending->rows[each] = waiting[each].row;
  }
  return 0;
}

}  // namespace sharded_infer
