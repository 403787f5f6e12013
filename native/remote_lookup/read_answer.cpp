// Reads a LookupResponse (protos/sharded_infer/v1/shard_host.proto), and pools the rows in it.
//
//     find the sums of each group, the counts of rows, and the rows
//     without counts: all sums are where they came
//     else for each entry:
//         0: copy its columns
//         1 + n: its ids have n distinct ones; ids become their numbers; pool the n rows
//
// The host is not trusted: nothing is read outside the message, whatever it says.
#include <cstdint>
#include <cstring>
#include <vector>

#include "abi/lookup_messages.h"
#include "base/wire.h"
#include "distinct.h"
#include "lookup/row_overlay.h"

namespace sharded_infer::lookups {

namespace {

constexpr std::uint64_t kSums = 1, kFiller = 2, kRowCounts = 3, kRowData = 4, kUnknown = 5;

// What one thread needs again and again.
struct Memory {
  std::vector<Bytes> sums;  // of each group, and of no more than were asked
  std::int64_t sum_count = 0;
  Bytes row_counts, rows, unknown;
  std::vector<std::int64_t> distinct, numbers;
  std::vector<Feature> features;
  Distinct finder;
};

// A number of at most ten bytes, which may have more than it needs.
bool read_number(const std::uint8_t*& at, const std::uint8_t* end, std::uint64_t& number) {
  number = 0;
  for (int shift = 0; shift < 70 && at != end; shift += 7) {
    const std::uint64_t byte = *at++;
    number |= (byte & 0x7f) << shift;
    if (byte < 0x80) return true;
  }
  return false;
}

// Finds the fields; fields of a newer release are passed over. Null, or where it is not such a
// message.
const std::uint8_t* find_fields(Bytes message, std::int64_t groups, Memory& memory) {
  memory.sums.clear();
  memory.sum_count = 0;
  memory.row_counts = memory.rows = memory.unknown = {};
  const std::uint8_t *at = message.data, *const end = at + message.size;
  while (at != end) {
    const std::uint8_t* const begin = at;
    std::uint64_t tag, number = 0;
    if (!read_number(at, end, tag)) return begin;
    const std::uint64_t field = tag >> 3, type = tag & 7;
    if (type == kVarint || type == kBytes) {
      if (!read_number(at, end, number)) return begin;
      if (type == kVarint) number = 0, tag = field << 3;
    } else if (type == kFixed64 || type == kFixed32) {
      number = type == kFixed64 ? 8 : 4;
    } else {
      return begin;
    }
    if (number > std::uint64_t(end - at)) return begin;
    const Bytes content = {at, std::int64_t(number)};
    at += number;
    if (field == 0 || (field == kFiller && type != kVarint)) return begin;
    if (field == kFiller || field > kUnknown) continue;
    if (type != kBytes) return begin;
    if (field == kSums) {
      if (++memory.sum_count <= groups) memory.sums.push_back(content);
    } else {
      Bytes& array = field == kRowCounts ? memory.row_counts
                     : field == kRowData ? memory.rows
                                         : memory.unknown;
      if (array.data != nullptr) return begin;
      array = content;
    }
  }
  return nullptr;
}

std::uint32_t count_at(Bytes counts, std::int64_t entry) {
  std::uint32_t count;
  std::memcpy(&count, counts.data + 4 * entry, sizeof count);
  return count;
}

// A bf16 is the first half of an fp32.
void widen_bfloats(const std::uint8_t* from, std::int64_t count, float* to) {
  for (std::int64_t at = 0; at < count; ++at) {
    std::uint16_t half;
    std::memcpy(&half, from + 2 * at, sizeof half);
    const std::uint32_t word = std::uint32_t(half) << 16;
    std::memcpy(to + at, &word, sizeof word);
  }
}

// Columns of the sums of a group, `stride` wide, which may lie at any address.
void copy_columns(const AskedGroup& group, const std::uint8_t* from, std::int64_t stride,
                  std::int64_t columns, float* to) {
  for (std::int64_t bag = 0; bag < group.bags; ++bag) {
    if (group.sum_bytes == 2)
      widen_bfloats(from, columns, to);
    else
      std::memcpy(to, from, std::size_t(4 * columns));
    from += group.sum_bytes * stride;
    to += group.columns;
  }
}

// Pools the entries of a group whose rows came, in one call for adjacent ones of a format.
void pool(const AskedGroup& group, const std::int64_t* numbers, Bytes counts,
          std::int64_t first_count, const Memory& memory, RunLookup run,
          std::int32_t instruction_set) {
  const float* weights = group.weights;
  for (std::int64_t first = 0, end; first < group.entries; first = end) {
    const std::int64_t format = group.pieces[first].format;
    const bool has_rows = count_at(counts, first_count + first) != 0;
    std::int64_t taken = 0;
    for (end = first; end < group.entries; ++end) {
      if (group.pieces[end].format != format) break;
      if ((count_at(counts, first_count + end) != 0) != has_rows) break;
      for (std::int64_t bag = 0; bag < group.bags; ++bag)
        taken += group.lengths[end * group.bags + bag];
    }
    if (has_rows) {
      const Lookup lookup = {memory.features.data() + first,
                             end - first,
                             group.bags,
                             numbers,
                             group.lengths + first * group.bags,
                             weights,
                             group.pooled,
                             group.columns,
                             std::int32_t(format),
                             0};
      run(instruction_set, &lookup);
    }
    numbers += taken;
    if (weights != nullptr) weights += taken;
  }
}

// Of a group some of whose entries have rows; `rows` is moved behind them.
Refused take_group(AskedGroup& group, std::int64_t number, Bytes sums, std::int64_t first_count,
                   const std::uint8_t*& rows, Memory& memory, RunLookup run,
                   std::int32_t instruction_set) {
  const Bytes counts = memory.row_counts;
  const std::uint8_t* const rows_end = memory.rows.data + memory.rows.size;
  std::int64_t stride = 0;
  for (std::int64_t entry = 0; entry < group.entries; ++entry)
    if (count_at(counts, first_count + entry) == 0) stride += group.pieces[entry].columns;
  const std::int64_t expected = group.sum_bytes * stride * group.bags;
  if (sums.size != expected) return {kOtherSums, number, 0, expected, sums.size};
  memory.features.clear();
  memory.numbers.resize(std::size_t(group.id_count));
  const std::uint8_t* from = sums.data;
  std::int64_t column = 0, taken = 0;
  const std::int64_t* lengths = group.lengths;
  for (std::int64_t entry = 0; entry < group.entries; ++entry) {
    const AskedPiece& piece = group.pieces[entry];
    const std::uint32_t count = count_at(counts, first_count + entry);
    std::int64_t own = 0;
    for (std::int64_t bag = 0; bag < group.bags; ++bag) own += *lengths++;
    memory.features.push_back(
        {rows, piece.row_bytes, piece.columns, column, std::int32_t(piece.mean), nullptr});
    if (count == 0) {
      copy_columns(group, from, stride, piece.columns, group.pooled + column);
      from += group.sum_bytes * piece.columns;
    } else {
      if (std::int64_t(memory.distinct.size()) < own) memory.distinct.resize(std::size_t(own));
      const std::int64_t found = memory.finder.number(
          group.ids + taken, own, own, memory.distinct.data(), memory.numbers.data() + taken);
      const std::int64_t came = std::int64_t(count) - 1;
      if (came != found) return {kOtherRows, number, entry, found, came};
      if ((rows_end - rows) / piece.row_bytes < came)
        return {kFewRowBytes, number, entry, came * piece.row_bytes, rows_end - rows};
      rows += came * piece.row_bytes;
    }
    column += piece.columns;
    taken += own;
  }
  pool(group, memory.numbers.data(), counts, first_count, memory, run, instruction_set);
  return {};
}

// Reads the message into the groups; what is refused, if anything.
Refused read_answer(Bytes message, AskedGroup* groups, std::int64_t count, RunLookup run,
                    std::int32_t instruction_set) {
  static thread_local Memory memory;
  if (const std::uint8_t* at = find_fields(message, count, memory))
    return {kNoResponse, 0, 0, 0, at - message.data};
  if (memory.sum_count != count) return {kOtherGroups, 0, 0, count, memory.sum_count};
  std::int64_t entries = 0;
  for (std::int64_t number = 0; number < count; ++number) entries += groups[number].entries;
  const bool has_counts = memory.row_counts.size != 0;
  if (has_counts && memory.row_counts.size != 4 * entries)
    return {kOtherEntries, 0, 0, 4 * entries, memory.row_counts.size};
  std::int64_t raw_bags = 0;
  for (std::int64_t number = 0; number < count; ++number)
    if (groups[number].raw != 0) raw_bags += groups[number].entries * groups[number].bags;
  const bool has_unknown = memory.unknown.size != 0;
  if (has_unknown && memory.unknown.size != 4 * raw_bags)
    return {kOtherUnknown, 0, 0, 4 * raw_bags, memory.unknown.size};
  const std::uint8_t *rows = memory.rows.data, *unknown = memory.unknown.data;
  std::int64_t first_count = 0;
  for (std::int64_t number = 0; number < count; ++number) {
    AskedGroup& group = groups[number];
    const Bytes sums = memory.sums[std::size_t(number)];
    bool has_rows = false;
    for (std::int64_t entry = 0; has_counts && entry < group.entries; ++entry)
      has_rows = has_rows || count_at(memory.row_counts, first_count + entry) != 0;
    group.sums = group.unknown = nullptr;
    if (has_unknown && group.raw != 0) {
      group.unknown = unknown;
      unknown += 4 * group.entries * group.bags;
    }
    if (has_rows) {
      const Refused refused =
          take_group(group, number, sums, first_count, rows, memory, run, instruction_set);
      if (refused.reason != kNone) return refused;
    } else {
      const std::int64_t expected = group.sum_bytes * group.columns * group.bags;
      if (sums.size != expected) return {kOtherSums, number, 0, expected, sums.size};
      if (group.sum_bytes == 4)
        group.sums = sums.data;
      else
        copy_columns(group, sums.data, group.columns, group.columns, group.pooled);
    }
    first_count += group.entries;
  }
  const std::int64_t taken = rows - memory.rows.data;
  if (taken != memory.rows.size) return {kMoreRowBytes, 0, 0, taken, memory.rows.size};
  return {};
}

}  // namespace
}  // namespace sharded_infer::lookups

using namespace sharded_infer::lookups;

extern "C" std::int32_t sharded_infer_answer_read(const std::uint8_t* message, std::int64_t bytes,
                                                  AskedGroup* groups, std::int64_t count,
                                                  sharded_infer::RunLookup run,
                                                  std::int32_t instruction_set, Refused* refused) {
  *refused = read_answer({message, bytes}, groups, count, run, instruction_set);
  return refused->reason != kNone;
}
