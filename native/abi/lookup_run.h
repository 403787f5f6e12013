// Lookups of a batch in one call: ids to the steps that have their rows, fused lookups, and their
// sums in the output.
//
//     for each group of bags, for each of its steps:
//         choose the ids whose rows the step has; begin to read those that are not in memory
//     for each group of bags, for each of its steps, in order:
//         wait for its rows, and look them up
//         whole tables and columns go to their columns of the output; parts of rows are added there
//         divide the columns of means by the lengths of their bags
//
// Where other hosts have parts of the sums, `sharded_infer_lookup_choose` finds what each is asked,
// and `sharded_infer_lookup_merge` adds all parts in the order of the plan: the sums have the same
// bits wherever rows lie.
//
// The caller has checked the ids. Lengths are [features, bags]; the ids of a row of bags follow
// each other. A bag goes to one row of the output; where there are fewer bags than rows, bag b goes
// to the next repeats[b] rows, and the only one to all.
#pragma once
#include <cstdint>

#include "abi/exported.h"

namespace sharded_infer {

struct Feature;

// The ids that a part reads.
enum LookupIds : std::int32_t {
  kAllIds,
  kIdsOfRows,    // with rows of a range, as rows relative to its first
  kIdsOfHashes,  // raw ones with hashes of a range
};

// One feature in a part.
struct LookupEntry {
  std::int64_t feature;    // of the group
  std::int64_t row_bytes;  // of a stored row
  std::uint64_t first;     // of the range of rows or hashes, as the last
  std::uint64_t last;
};

// Adjacent columns of a result with adjacent destinations.
struct LookupColumns {
  std::int64_t column;  // of the output
  std::int64_t source;  // of the result
  std::int64_t width;
  std::int64_t added;  // 0: they overwrite
};

// A rank's part of a group: the ids that it reads, and the columns that it writes.
struct LookupPart {
  const LookupEntry* entries;
  std::int64_t entry_count;
  const LookupColumns* columns;
  std::int64_t column_count;
  std::int64_t width;  // of the result
  std::int64_t rank;
  std::int32_t ids;          // LookupIds
  std::int32_t is_adjacent;  // all ids of adjacent features, which need not be copied
};

struct LookupTier {
  void* tier;              // as sharded_infer_tier_open returned it
  std::int64_t first_row;  // where ids begin
};

// A fused lookup of rows of one format.
struct LookupStep {
  const LookupPart* part;
  const Feature* features;  // [entry_count], at columns of the result
  const Feature* placed;    // the same, at columns of the output; null: they are added there
  const LookupTier* tiers;  // [entry_count]; null: rows are in memory
  std::int32_t format;
};

struct LookupMean {
  std::int64_t feature;  // of the group, whose lengths divide
  std::int64_t column;
  std::int64_t width;
};

struct LookupZeros {
  std::int64_t column;
  std::int64_t width;
};

// Of a mapped file: not 0 when pages were lost, and a byte that would be lost first.
struct LookupWatch {
  const volatile std::int32_t* lost;
  const volatile std::uint8_t* place;
  std::int32_t byte;
};

// Of one group of features.
struct LookupPlan {
  const LookupStep* steps;
  std::int64_t step_count;
  const LookupZeros* zeros;  // columns that parts are added to
  std::int64_t zeros_count;
  const LookupMean* means;  // divided when all parts have been added
  std::int64_t mean_count;
  const LookupWatch* watches;
  std::int64_t watch_count;
  std::int32_t instruction_set;
  std::int32_t is_merged;  // later: parts of rows wait in `apart`, and means are not divided
};

// Bags, and the output of their lookup.
struct LookupGroup {
  const LookupPlan* plan;
  const std::int64_t* values;
  const std::int64_t* lengths;
  const float* weights;  // of the ids, or null
  std::int64_t features;
  std::int64_t bags;
  const std::int64_t* repeats;  // samples of each request that sent bags; null: all, or one
  std::int64_t samples;
  std::int64_t places;  // bags of a sample
  float* out;           // [rows, stride]
  std::int64_t rows;
  std::int64_t stride;
  float* apart;  // [bags, width] of each part that waits, one after another
};

// Of one step, or of one part on another host.
struct LookupWork {
  std::int64_t rank;
  std::int64_t ids;
  std::int64_t row_bytes;  // of these ids' rows
  double seconds;
};

enum LookupEnd : std::int32_t {
  kLookedUp,
  kFileLost,     // a mapped file has lost bytes
  kRowsMissing,  // of the tier of an entry; see MissingRow
  kWrongRepeats,
  kNoMemory,
};

struct LookupRun {
  const LookupGroup* groups;
  std::int64_t group_count;
  double deadline;      // of waits for rows, on the monotonic clock
  double most_seconds;  // of one wait
  LookupWork* work;     // [steps of all groups]; written, as all below
  std::int64_t saved;   // rows not looked up because samples share bags
  std::int32_t end;     // LookupEnd
  std::int32_t why;     // as all below, of missing rows: MissingRow
  std::int32_t error;
  std::int64_t group;
  std::int64_t step;
  std::int64_t entry;
  std::int64_t row;
  std::int64_t count;
  double seconds;  // of the wait
};

// Ids of a part in arrays of several.
struct LookupChosen {
  std::int64_t ids;
  std::int64_t row_bytes;
  std::int64_t saved;     // as of LookupRun
  std::int64_t first_id;  // in the group's values, of an adjacent part; else in the new ones
};

// A result of a part.
struct LookupResult {
  const LookupPart* part;
  const float* numbers;  // [bags, stride]
  std::int64_t stride;
};

}  // namespace sharded_infer

extern "C" {

EXPORTED void sharded_infer_lookup_run(sharded_infer::LookupRun* run);

// Chooses the ids of each part. Those that are not adjacent features' are copied one after another
// to arrays with room for all ids of each entry's feature.
EXPORTED_BOTH_WAYS void sharded_infer_lookup_choose(const sharded_infer::LookupGroup* group,
                                                    const sharded_infer::LookupPart* const parts[],
                                                    std::int64_t count, std::int64_t values[],
                                                    std::int64_t lengths[], float weights[],
                                                    sharded_infer::LookupChosen chosen[]);

// Writes or adds results in turn, and divides means. Returns the rows of the output that repeats
// ask for.
EXPORTED_BOTH_WAYS std::int64_t sharded_infer_lookup_merge(
    const sharded_infer::LookupGroup* group, const sharded_infer::LookupResult results[],
    std::int64_t count);
}
