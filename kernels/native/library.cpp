// The C interface of the kernels, which Python calls through ctypes (without the GIL).
#include "attention.h"
#include "dense.h"
#include "id_hash.h"
#include "id_index.h"
#include "instruction_sets.h"
#include "lookup.h"
#include "lost_pages.h"
#include "pair_layers.h"
#include "passes.h"
#include "prefetch.h"
#include "product.h"
#include "row_places.h"
#include "row_steps.h"

#include <cstdlib>
#include <cstring>

using sharded_infer::Attention;
using sharded_infer::DenseStep;
using sharded_infer::IdIndex;
using sharded_infer::Lookup;
using sharded_infer::PairLayers;
using sharded_infer::Passes;
using sharded_infer::Product;
using sharded_infer::RowSteps;

#define EXPORTED __attribute__((visibility("default")))

extern "C" {

// Features of the processor, as bits of `ProcessorFeature`; see processor.h.
EXPORTED std::uint32_t sharded_infer_features() { return sharded_infer::features(); }

// Mapped files whose pages may be lost; see lost_pages.h.
EXPORTED std::int32_t sharded_infer_guard(const std::uint8_t* begin, std::int64_t bytes) {
  return sharded_infer::guard(begin, bytes);
}

EXPORTED std::int32_t* sharded_infer_mark_of(std::int32_t place) {
  return sharded_infer::mark_of(place);
}

EXPORTED void sharded_infer_unguard(std::int32_t place) { sharded_infer::unguard(place); }

// Copies rows one after another, fetched ahead as a lookup does, over the same memory again and
// again: what memory allows where nothing is computed.
EXPORTED void sharded_infer_gather(const std::uint8_t* rows, std::int64_t row_bytes,
                                   const std::int64_t* ids, std::int64_t count, std::uint8_t* out,
                                   std::int64_t out_rows) {
  std::int64_t fetched = 0;
  for (std::int64_t at = 0; at < count; ++at) {
    if (at % sharded_infer::kAtOnce == 0)
      for (; fetched < count && fetched < at + sharded_infer::kFarAhead; ++fetched)
        sharded_infer::fetch(rows + ids[fetched] * row_bytes, row_bytes, false);
    std::memcpy(out + at % out_rows * row_bytes, rows + ids[at] * row_bytes, row_bytes);
  }
}

// Whether lengths sum to the ids, and every id lies inside its feature's table.
EXPORTED std::int32_t sharded_infer_inside(const std::int64_t* values, const std::int64_t* lengths,
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

// Pools rows; see lookup.h. The caller has checked the instruction set, the ids and the lengths.
EXPORTED void sharded_infer_lookup(std::int32_t instruction_set, const Lookup* lookup) {
#if defined(__x86_64__)
  if (instruction_set == sharded_infer::kAvx512) return sharded_infer::lookup_avx512(*lookup);
  if (instruction_set == sharded_infer::kAvx2) return sharded_infer::lookup_avx2(*lookup);
#endif
  sharded_infer::lookup_baseline(*lookup);
}

// One pass between two matrix products; see dense.h. The caller has checked the instruction set.
EXPORTED void sharded_infer_dense_step(std::int32_t instruction_set, const DenseStep* step) {
#if defined(__x86_64__)
  if (instruction_set == sharded_infer::kAvx512) return sharded_infer::dense_step_avx512(*step);
  if (instruction_set == sharded_infer::kAvx2) return sharded_infer::dense_step_avx2(*step);
#endif
  sharded_infer::dense_step_baseline(*step);
}

// Floats that an attention needs as its space.
EXPORTED std::int64_t sharded_infer_attention_space(const Attention* attention) {
  return sharded_infer::attention_space(*attention);
}

// Attention; see attention.h. The caller has checked the instruction set and the sizes.
EXPORTED void sharded_infer_attention(std::int32_t instruction_set, const Attention* attention) {
#if defined(__x86_64__)
  if (instruction_set == sharded_infer::kAvx512) return sharded_infer::attention_avx512(*attention);
  if (instruction_set == sharded_infer::kAvx2) return sharded_infer::attention_avx2(*attention);
#endif
  sharded_infer::attention_baseline(*attention);
}

// Floats that layers on pairs need as their space.
EXPORTED std::int64_t sharded_infer_pair_layers_space(const PairLayers* pairs) {
  return sharded_infer::pair_layers_space(*pairs);
}

// Layers on pairs; see pair_layers.h. The caller has checked the instruction set and the sizes.
EXPORTED void sharded_infer_pair_layers(std::int32_t instruction_set, const PairLayers* pairs) {
#if defined(__x86_64__)
  if (instruction_set == sharded_infer::kAvx512) return sharded_infer::pair_layers_avx512(*pairs);
  if (instruction_set == sharded_infer::kAvx2) return sharded_infer::pair_layers_avx2(*pairs);
#endif
  sharded_infer::pair_layers_baseline(*pairs);
}

// Columns of a panel of a linear step's weight.
EXPORTED std::int64_t sharded_infer_row_panel_columns(std::int32_t instruction_set) {
#if defined(__x86_64__)
  if (instruction_set == sharded_infer::kAvx512) return sharded_infer::row_panel_columns_avx512();
  if (instruction_set == sharded_infer::kAvx2) return sharded_infer::row_panel_columns_avx2();
#endif
  return sharded_infer::row_panel_columns_baseline();
}

// Steps on rows; see row_steps.h. The caller has checked the instruction set and the sizes.
EXPORTED void sharded_infer_row_steps(std::int32_t instruction_set, const RowSteps* steps) {
#if defined(__x86_64__)
  if (instruction_set == sharded_infer::kAvx512) return sharded_infer::row_steps_avx512(*steps);
  if (instruction_set == sharded_infer::kAvx2) return sharded_infer::row_steps_avx2(*steps);
#endif
  sharded_infer::row_steps_baseline(*steps);
}

// Passes in one call; see passes.h. The caller has checked the instruction set and the sizes.
// Returns 1 without memory for their space.
EXPORTED std::int32_t sharded_infer_passes(std::int32_t instruction_set, Passes* passes) {
  constexpr std::size_t kLine = 64;
  const std::size_t bytes = sharded_infer::passes_space(*passes) * sizeof(float) + kLine - 1;
  passes->space = static_cast<float*>(std::aligned_alloc(kLine, bytes / kLine * kLine));
  if (!passes->space && bytes >= kLine) return 1;
#if defined(__x86_64__)
  if (instruction_set == sharded_infer::kAvx512)
    sharded_infer::passes_avx512(*passes);
  else if (instruction_set == sharded_infer::kAvx2)
    sharded_infer::passes_avx2(*passes);
  else
#endif
    sharded_infer::passes_baseline(*passes);
  std::free(passes->space);
  return 0;
}

// Each id's row, -1 for unknown ones; see id_index.h.
EXPORTED void sharded_infer_rows_of_ids(const IdIndex* index, const std::int64_t* ids,
                                        std::int64_t count, std::int64_t* rows) {
  sharded_infer::rows_of_ids(*index, ids, count, rows);
}

// Writes rows in place of ids that have a place; see row_places.h. False: a row lies outside the
// table.
EXPORTED std::int32_t sharded_infer_placed_rows(const std::uint8_t* blocks, std::uint64_t placed,
                                                std::uint64_t table_rows, std::int64_t* ids,
                                                std::int64_t count) {
  return sharded_infer::placed_rows(blocks, placed, table_rows, ids, count);
}

// The hash of each string: 0 XXH3 of 64 bits, 1 MurmurHash3; see id_hash.h. The caller has checked
// the offsets.
EXPORTED void sharded_infer_hash_strings(std::int32_t hash, const std::uint8_t* data,
                                         const std::int64_t* offsets, std::int64_t count,
                                         std::uint64_t seed, std::uint64_t* out) {
  sharded_infer::hash_strings(static_cast<sharded_infer::StringHash>(hash), data, offsets, count,
                              seed, out);
}

EXPORTED std::int64_t sharded_infer_join_strings(const std::uint8_t* data, std::int64_t bytes,
                                                 std::int64_t count, std::uint8_t* joined,
                                                 std::int64_t* offsets) {
  return sharded_infer::join_strings(data, bytes, count, joined, offsets);
}

// The hash of each id; see id_hash.h.
EXPORTED void sharded_infer_hash_ids(std::int32_t hash, const std::uint64_t* ids,
                                     std::int64_t count, std::uint64_t seed, std::uint64_t* out) {
  for (std::int64_t at = 0; at < count; ++at)
    out[at] = sharded_infer::hash_id(static_cast<sharded_infer::IdHash>(hash), ids[at], seed);
}

// FBGEMM's hash of each id and of y; see id_hash.h.
EXPORTED void sharded_infer_murmur_hash3_2x64(const std::uint64_t* ids, std::int64_t count,
                                              std::uint64_t y, std::uint64_t seed,
                                              std::uint64_t* out) {
  for (std::int64_t at = 0; at < count; ++at)
    out[at] = sharded_infer::murmur_hash3_2x64(ids[at], y, seed);
}

// Writes some buckets of an index; see id_index.h. The caller has checked the keys' order.
EXPORTED std::int32_t sharded_infer_place_ids(const IdIndex* index, std::uint64_t first,
                                              std::int64_t bucket_count, const std::uint64_t* keys,
                                              const std::uint32_t* rows, std::int64_t key_count,
                                              sharded_infer::PendingIds* pending,
                                              std::uint8_t* out) {
  return sharded_infer::place_ids(*index, first, bucket_count, keys, rows, key_count, pending, out);
}

// A product and what follows it; see product.h. The caller has checked that the machine has the
// instructions.
EXPORTED void sharded_infer_product(std::int32_t instruction_set, const Product* product) {
#if defined(__x86_64__)
  if (instruction_set == sharded_infer::kAvx512) return sharded_infer::product_avx512(*product);
  sharded_infer::product_avx2(*product);
#endif
}
}
