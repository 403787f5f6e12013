#include "group_answers.h"

#include "base/prefetch.h"

namespace sharded_infer::lookups {

namespace {

// Finds the rows of distinct ids; how many, or -1 if they are more than `most`.
std::int64_t find_rows(const Piece& piece, const std::int64_t* ids, std::int64_t count,
                       std::int64_t most, AnswerMemory& memory) {
  const std::int64_t found =
      memory.numbers.number(ids, count, most, memory.distinct.data(), nullptr);
  for (std::int64_t at = 0; at < found; ++at)
    memory.rows.push_back(piece.row_of(memory.distinct[std::size_t(at)]));
  return found;
}

// As above, of raw ids, whose rows are `ids`: raw ids may share a row, which the front cannot know.
std::int64_t find_raw(const Piece& piece, const std::int64_t* raw, const std::int64_t* ids,
                      std::int64_t count, std::int64_t most, AnswerMemory& memory) {
  if (std::int64_t(memory.positions.size()) < count) memory.positions.resize(std::size_t(count));
  std::int64_t* positions = memory.positions.data();
  const std::int64_t found =
      memory.numbers.number(raw, count, most, memory.distinct.data(), positions);
  for (std::int64_t at = 0, next = 0; next < found; ++at)
    if (positions[at] == next) {
      memory.rows.push_back(piece.row_of(ids[at]));
      ++next;
    }
  return found;
}

}  // namespace

Chosen choose(const Share& share, AnswerMemory& memory) {
  Chosen chosen;
  memory.row_counts.clear();
  memory.rows.clear();
  std::int64_t fewer = 0;
  for (std::size_t number = 0; number < memory.request.groups.size(); ++number) {
    const Group& group = memory.request.groups[number];
    const GroupBags& bags = memory.groups[number];
    const std::int64_t* lengths = bags.lengths.data();
    const std::int64_t* ids = bags.ids.data();
    const std::int64_t* raw = group.raw ? bags.raw.data() : nullptr;
    for (std::int64_t entry = 0; entry < group.entries(); ++entry) {
      const Piece& piece = piece_of(share, group, entry);
      std::int64_t own = 0, distinct = -1;
      for (std::int64_t bag = 0; bag < group.bags(); ++bag) own += *lengths++;
      const std::int64_t sums = group.sum_bytes * group.bags() * piece.columns;
      // An id without a row, which the front cannot leave out, makes fewer rows than raw ids.
      const std::int64_t raw_count = group.raw ? bags.raw_counts[std::size_t(entry)] : own;
      if (memory.request.rows && raw_count == own) {
        const std::int64_t most = std::min(own, (sums - 1) / piece.row_bytes);
        if (std::int64_t(memory.distinct.size()) < most) memory.distinct.resize(std::size_t(most));
        distinct = group.raw ? find_raw(piece, raw, ids, own, most, memory)
                             : find_rows(piece, ids, own, most, memory);
      }
      memory.row_counts.push_back(std::uint32_t(distinct + 1));
      if (distinct >= 0) {
        chosen.row_bytes += distinct * piece.row_bytes;
        fewer += sums - distinct * piece.row_bytes;
      }
      ids += own;
      if (group.raw) raw += raw_count;
    }
  }
  const auto counts = std::int64_t(4 * memory.row_counts.size());
  chosen.has_rows = fewer > counts + head_bytes(counts) + head_bytes(chosen.row_bytes);
  if (!chosen.has_rows) {
    chosen.row_bytes = 0;
    std::fill(memory.row_counts.begin(), memory.row_counts.end(), 0);
  }
  return chosen;
}

void pool(const Share& share, const Group& group, const GroupBags& own,
          const std::uint32_t* row_counts, std::int64_t stride, AnswerMemory& memory, void* out) {
  const std::int64_t entries = group.entries(), bags = group.bags();
  memory.features.clear();
  std::int64_t column = 0;
  for (std::int64_t entry = 0; entry < entries; ++entry) {
    const Piece& piece = piece_of(share, group, entry);
    memory.features.push_back(piece.feature(column));
    if (row_counts[entry] == 0) column += piece.columns;
  }
  const std::int64_t* lengths = own.lengths.data();
  const std::int64_t* ids = own.ids.data();
  const float* weights = own.weights.empty() ? nullptr : own.weights.data();
  for (std::int64_t first = 0, end; first < entries; first = end) {
    const Piece& one = piece_of(share, group, first);
    const bool has_rows = row_counts[first] != 0;
    std::int64_t taken = 0;
    for (end = first; end < entries; ++end) {
      const Piece& piece = piece_of(share, group, end);
      if (piece.format != one.format || (row_counts[end] != 0) != has_rows) break;
      std::int64_t count = 0;
      for (std::int64_t bag = 0; bag < bags; ++bag) count += lengths[end * bags + bag];
      if (!has_rows) {
        memory.cost.rows += count;
        memory.cost.row_bytes += count * piece.row_bytes;
      }
      taken += count;
    }
    if (!has_rows) {
      // One call for all adjacent entries of a format.
      const Lookup lookup = {memory.features.data() + first,
                             end - first,
                             bags,
                             ids,
                             lengths + first * bags,
                             weights,
                             out,
                             stride,
                             one.format,
                             group.sum_bytes == 2};
      share.run(share.instruction_set, &lookup);
    }
    ids += taken;
    if (weights != nullptr) weights += taken;
  }
}

std::uint8_t* copy_rows(const Share& share, AnswerMemory& memory, std::uint8_t* to) {
  const bool into_first = fetches_into_first_cache();
  const auto all = std::int64_t(memory.rows.size());
  const std::uint8_t* const* rows = memory.rows.data();
  const std::uint32_t* row_counts = memory.row_counts.data();
  const std::int64_t some = piece_of(share, memory.request.groups.front(), 0).row_bytes;
  for (std::int64_t ahead = 0; ahead < std::min(all, kAhead); ++ahead)
    fetch(rows[ahead], some, into_first);
  std::int64_t at = 0;
  for (const Group& group : memory.request.groups)
    for (std::int64_t entry = 0; entry < group.entries(); ++entry, ++row_counts) {
      const std::int64_t row_bytes = piece_of(share, group, entry).row_bytes;
      const std::int64_t end = at + std::max<std::int64_t>(*row_counts, 1) - 1;
      memory.cost.rows += end - at;
      memory.cost.row_bytes += (end - at) * row_bytes;
      for (; at < end; ++at, to += row_bytes) {
        // Those ahead may be of other pieces, whose rows have about as many bytes.
        if (at + kAhead < all) fetch(rows[at + kAhead], row_bytes, into_first);
        std::memcpy(to, rows[at], std::size_t(row_bytes));
      }
    }
  return to;
}

}  // namespace sharded_infer::lookups
