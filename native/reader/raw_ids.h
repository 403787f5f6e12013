// Raw ids to rows of a table, as sharded_infer/inputs/id_map.py maps them; it is the reference.
//
//   hashed:             the hash modulo the table's rows
//   known to the index: its row
//   else by `unknown`:  the request is refused; or the id leaves its bag;
//                       or it reads the row of its segment, which each part has, or one that a
//                       hash chooses
#pragma once
#include "abi/model.h"
#include "base/id_hash.h"
#include "base/id_index.h"

namespace sharded_infer {

// Writes rows in place of ids, -1 for those that leave their bags, and adds the unknown ones to
// `unknown`. False: an unknown id is refused, or the file of the index has become shorter.
bool map_ids(const IdMap& map, std::int64_t* ids, std::int64_t count, std::int64_t& unknown);

// Writes rows in place of judged ids of an ordered table: as sharded_infer/inputs/placed_ids.py,
// the reference. Those without a place, also -1, stay. False: a place or the file was damaged.
bool place_ids(const IdMap& map, std::int64_t* ids, std::int64_t count);

}  // namespace sharded_infer
