// Raw ids to rows of a table, as sharded_infer/inputs/id_map.py maps them; it is the reference.
//
//   hashed:             the hash modulo the table's rows
//   known to the index: its row
//   else by `unknown`:  the request is refused; or the id leaves its bag;
//                       or it reads the row of its segment, which each part has, or one that a
//                       hash chooses
#pragma once
#include "base/id_hash.h"
#include "base/id_index.h"

namespace sharded_infer {

enum Unknown : std::int64_t { kRefused = 0, kAbsent = 1, kSharedRow = 2, kHashedRow = 3 };

// The id map of one table, as Python fills it.
struct IdMap {
  IdIndex index;                    // without buckets: ids are hashed, or left raw
  const std::int32_t* mark;         // not 0: pages of the index's file were lost; null: no file
  const std::uint8_t* last;         // a byte of the file
  std::int64_t last_byte;           // what it holds unless the file was cut
  std::int64_t unknown;             // an `Unknown`
  const std::int64_t* shared_rows;  // [segments], relative to the id's part
  std::int64_t segments;            // of unknown ids: of shared rows, or buckets
  std::int64_t segment_ids;         // ids in each; 0: id modulo segments, of hashed rows
  std::int64_t bucket_rows;
  std::int64_t first_row;    // of a bucket: of its rows that unknown ids read
  std::int64_t hashed_rows;  // so many
  std::int64_t divided;      // not 0: the id is hashed without its bucket
  std::int64_t counted;      // position of its count of unknown ids
  std::int64_t hash;         // an `IdHash`
  std::uint64_t seed;
  std::uint64_t table_rows;          // of hashed ids; 0: ids are not hashed
  const std::uint64_t* part_hashes;  // [parts], the least of each part's ids
  const std::int64_t* part_rows;     // [parts], the first of each
  std::int64_t parts;                // 0: the table is not in parts
  const std::uint8_t*
      places;  // of an ordered table, its blocks: native/base/row_places.h; else null
  std::uint64_t placed;
  std::uint64_t placed_rows;  // of the ordered table
};

// Writes rows in place of ids, -1 for those that leave their bags, and adds the unknown ones to
// `unknown`. False: an unknown id is refused, or the file of the index has become shorter.
bool map_ids(const IdMap& map, std::int64_t* ids, std::int64_t count, std::int64_t& unknown);

// Writes rows in place of judged ids of an ordered table: as sharded_infer/inputs/placed_ids.py,
// the reference. Those without a place, also -1, stay. False: a place or the file was damaged.
bool place_ids(const IdMap& map, std::int64_t* ids, std::int64_t count);

}  // namespace sharded_infer
