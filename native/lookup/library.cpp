// The C interface of the kernels, which Python calls through ctypes (without the GIL).
#include "abi/lookup.h"
#include "abi/machine.h"
#include "base/id_hash.h"
#include "base/id_index.h"
#include "base/processor.h"
#include "base/prefetch.h"
#include "base/row_places.h"
#include "tower/product.h"

#include <cstring>

using sharded_infer::IdIndex;
using sharded_infer::Product;

extern "C" {

std::uint32_t sharded_infer_features() { return sharded_infer::features(); }

void sharded_infer_gather(const std::uint8_t* rows, std::int64_t row_bytes, const std::int64_t* ids,
                          std::int64_t count, std::uint8_t* out, std::int64_t out_rows) {
  std::int64_t fetched = 0;
  for (std::int64_t at = 0; at < count; ++at) {
    if (at % sharded_infer::kAtOnce == 0)
      for (; fetched < count && fetched < at + sharded_infer::kFarAhead; ++fetched)
        sharded_infer::fetch(rows + ids[fetched] * row_bytes, row_bytes, false);
    std::memcpy(out + at % out_rows * row_bytes, rows + ids[at] * row_bytes, row_bytes);
  }
}

std::int32_t sharded_infer_inside(const std::int64_t* values, const std::int64_t* lengths,
                                  const std::int64_t* rows, std::int64_t features,
                                  std::int64_t batch, std::int64_t ids) {
  for (std::int64_t feature = 0; feature < features; ++feature) {
    std::int64_t count = 0;
    for (std::int64_t sample = 0; sample < batch; ++sample, ++lengths) {
      if (*lengths < 0 || *lengths > ids - count) return 0;
      count += *lengths;
    }
    ids -= count;
    const std::uint64_t limit = static_cast<std::uint64_t>(rows[feature]);
    std::uint64_t outside = 0;
    // A negative id is a huge number without its sign.
    for (std::int64_t at = 0; at < count; ++at)
      outside |= static_cast<std::uint64_t>(values[at]) >= limit;
    if (outside) return 0;
    values += count;
  }
  return ids == 0;
}

void sharded_infer_rows_of_ids(const IdIndex* index, const std::int64_t* ids, std::int64_t count,
                               std::int64_t* rows) {
  sharded_infer::rows_of_ids(*index, ids, count, rows);
}

std::int32_t sharded_infer_placed_rows(const std::uint8_t* blocks, std::uint64_t placed,
                                       std::uint64_t table_rows, std::int64_t* ids,
                                       std::int64_t count) {
  return sharded_infer::placed_rows(blocks, placed, table_rows, ids, count);
}

void sharded_infer_hash_strings(sharded_infer::StringHash hash, const std::uint8_t* data,
                                const std::int64_t* offsets, std::int64_t count, std::uint64_t seed,
                                std::uint64_t* out) {
  sharded_infer::hash_strings(hash, data, offsets, count, seed, out);
}

std::int64_t sharded_infer_join_strings(const std::uint8_t* data, std::int64_t bytes,
                                        std::int64_t count, std::uint8_t* joined,
                                        std::int64_t* offsets) {
  return sharded_infer::join_strings(data, bytes, count, joined, offsets);
}

void sharded_infer_hash_ids(sharded_infer::IdHash hash, const std::uint64_t* ids,
                            std::int64_t count, std::uint64_t seed, std::uint64_t* out) {
  for (std::int64_t at = 0; at < count; ++at) out[at] = sharded_infer::hash_id(hash, ids[at], seed);
}

void sharded_infer_murmur_hash3_2x64(const std::uint64_t* ids, std::int64_t count, std::uint64_t y,
                                     std::uint64_t seed, std::uint64_t* out) {
  for (std::int64_t at = 0; at < count; ++at)
    out[at] = sharded_infer::murmur_hash3_2x64(ids[at], y, seed);
}

std::int32_t sharded_infer_place_ids(const IdIndex* index, std::uint64_t first,
                                     std::int64_t bucket_count, const std::uint64_t* keys,
                                     const std::uint32_t* rows, std::int64_t key_count,
                                     sharded_infer::PendingIds* pending, std::uint8_t* out) {
  return sharded_infer::place_ids(*index, first, bucket_count, keys, rows, key_count, pending, out);
}

void sharded_infer_product(std::int32_t instruction_set, const Product* product) {
#if defined(__x86_64__)
  if (instruction_set == sharded_infer::kAvx512) return sharded_infer::product_avx512(*product);
  sharded_infer::product_avx2(*product);
#endif
}
}
