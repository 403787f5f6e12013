// See raw_ids.h.
#include "raw_ids.h"

#include "base/row_places.h"

#include <algorithm>

namespace sharded_infer {
namespace {

// Ids that are searched together; their rows are kept apart, since a search reads ids again.
constexpr std::int64_t kTogether = 1024;

// Python's division, towards minus infinity, and its rest, which is never negative.
std::int64_t quotient(std::int64_t id, std::int64_t by) {
  return id / by - (id % by != 0 && id < 0);
}

std::int64_t rest(std::int64_t id, std::int64_t by) {
  const std::int64_t found = id % by;
  return found < 0 ? found + by : found;
}

// The first row of the id's part.
std::int64_t part_row(const IdMap& map, std::int64_t id) {
  if (map.parts == 0) return 0;
  const std::uint64_t hash = hash_of_id(static_cast<std::uint64_t>(id), kPartitionSeed);
  const std::uint64_t* end = map.part_hashes + map.parts;
  return map.part_rows[std::upper_bound(map.part_hashes, end, hash) - map.part_hashes - 1];
}

std::int64_t shared_row(const IdMap& map, std::int64_t id) {
  const std::int64_t first = part_row(map, id);
  if (map.segments == 1) return first + map.shared_rows[0];
  const auto bits = static_cast<std::uint64_t>(id);
  const auto segments = static_cast<std::uint64_t>(map.segments);
  const std::uint64_t at = bits / static_cast<std::uint64_t>(map.segment_ids);
  return first + map.shared_rows[at < segments ? at : bits % segments];
}

std::int64_t hashed_row(const IdMap& map, std::int64_t id) {
  std::int64_t bucket, left;
  if (map.segment_ids == 0) {
    bucket = rest(id, map.segments);
    left = quotient(id, map.segments);
  } else {
    bucket = rest(quotient(id, map.segment_ids), map.segments);
    left = rest(id, map.segment_ids);
  }
  const auto key = static_cast<std::uint64_t>(map.divided ? left : id);
  const std::uint64_t hash = murmur_hash3_2x64(key, 0, 0);
  return bucket * map.bucket_rows + map.first_row +
         static_cast<std::int64_t>(hash % static_cast<std::uint64_t>(map.hashed_rows));
}

void hash_all(const IdMap& map, std::int64_t* ids, std::int64_t count) {
  const IdHash hash = map.hash;
  for (std::int64_t at = 0; at < count; ++at) {
    const std::uint64_t hashed = hash_id(hash, static_cast<std::uint64_t>(ids[at]), map.seed);
    ids[at] = static_cast<std::int64_t>(hashed % map.table_rows);
  }
}

bool has_lost_pages(const IdMap& map) {
  // The handler of the signal, or another process, changes them.
  const volatile std::int32_t* mark = map.mark;
  const volatile std::uint8_t* last = map.last;
  // Reading a byte that is lost sets the mark; it may read as it did before.
  return mark != nullptr && (*last != map.last_byte || *mark != 0);
}

}  // namespace

bool map_ids(const IdMap& map, std::int64_t* ids, std::int64_t count, std::int64_t& unknown) {
  if (map.table_rows != 0) hash_all(map, ids, count);
  if (map.index.buckets == nullptr) return true;
  std::int64_t rows[kTogether];
  for (; count > 0; ids += kTogether, count -= kTogether) {
    const std::int64_t some = std::min(count, kTogether);
    rows_of_ids(map.index, ids, some, rows);
    for (std::int64_t at = 0; at < some; ++at) {
      if (rows[at] >= 0) continue;
      if (map.unknown == kRefused) return false;
      ++unknown;
      if (map.unknown == kSharedRow) rows[at] = shared_row(map, ids[at]);
      if (map.unknown == kHashedRow) rows[at] = hashed_row(map, ids[at]);
    }
    std::copy_n(rows, some, ids);
  }
  return !has_lost_pages(map);
}

bool place_ids(const IdMap& map, std::int64_t* ids, std::int64_t count) {
  const bool all_inside = placed_rows(map.places, map.placed, map.placed_rows, ids, count);
  return all_inside && !has_lost_pages(map);
}

}  // namespace sharded_infer
