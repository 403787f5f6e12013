// What answers the groups of a LookupRequest: pooled sums, or the distinct rows that are pooled.
//
//     for each entry: rows, if its distinct ids' rows have fewer bytes than its sums
//     no rows at all, if what they save is less than what they add to the message
#pragma once
#include <cstring>

#include "distinct.h"
#include "share.h"

namespace sharded_infer::lookups {

// Of one group, as the kernels take them.
struct GroupBags {
  std::vector<std::int64_t> lengths, ids;
  std::vector<float> weights;
  // Of a group of raw ids: all of them, how many each entry has, and unknown ones of each bag.
  std::vector<std::int64_t> raw, raw_counts;
  std::vector<std::uint32_t> unknown;
  bool has_unknown = false;
};

// What one thread needs again and again.
struct AnswerMemory {
  LookupRequest request;
  std::vector<GroupBags> groups;          // of the request, or more
  std::vector<std::uint32_t> row_counts;  // of all entries, as LookupResponse has them
  std::vector<std::int64_t> columns;      // of each group, whose sums answer
  std::vector<std::int64_t> distinct;     // of one entry
  std::vector<std::int64_t> positions;    // of its raw ids, among the distinct ones
  std::vector<const std::uint8_t*> rows;  // that answer, of all entries
  std::vector<Feature> features;
  Distinct numbers;
  LookupCost cost;
};

// What answers a request.
struct Chosen {
  std::int64_t row_bytes = 0;
  bool has_rows = false;
};

inline const Piece& piece_of(const Share& share, const Group& group, std::int64_t entry) {
  std::uint32_t number;
  std::memcpy(&number, group.pieces.data + 4 * entry, sizeof number);
  return share.pieces[number];
}

// Chooses for each entry, and finds the rows. The groups' bags are checked.
Chosen choose(const Share& share, AnswerMemory& memory);

// Pools the entries of a group whose sums answer: fp32 or bf16 [bags, stride].
void pool(const Share& share, const Group& group, const GroupBags& own,
          const std::uint32_t* row_counts, std::int64_t stride, AnswerMemory& memory, void* out);

// Copies the rows that answer, entry after entry; returns where they end.
std::uint8_t* copy_rows(const Share& share, AnswerMemory& memory, std::uint8_t* to);

}  // namespace sharded_infer::lookups
