#include "answer_lookups.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/clock.h"
#include "base/ids.h"
#include "group_answers.h"

namespace sharded_infer::lookups {

namespace {

using transport::Answer;

// Before the sums of a group stand a filler, their tag, and their length in so many bytes that the
// kernels, which write numbers to addresses that are multiples of their size, write them in place.
constexpr std::size_t kPrefixBytes = 5, kFillerBytes = 2, kTagBytes = 1;
constexpr int kFirstLengthBytes = 4, kNextLengthBytes = 5;
constexpr std::size_t kFirstHeadBytes = kFillerBytes + kTagBytes + kFirstLengthBytes;
constexpr std::size_t kNextHeadBytes = kFillerBytes + kTagBytes + kNextLengthBytes;
constexpr std::int64_t kMostFirstBytes = (std::int64_t(1) << 7 * kFirstLengthBytes) - 1;
static_assert((sizeof(Answer) + kPrefixBytes + kFirstHeadBytes) % sizeof(float) == 0);
static_assert(kNextHeadBytes % sizeof(float) == 0);

bool widen(const std::uint8_t* from, std::int64_t bytes, std::int64_t count, std::int64_t limit,
           std::int64_t* to) {
  switch (bytes) {
    case 1: return copy_numbers<std::uint8_t>(from, count, limit, to);
    case 2: return copy_numbers<std::uint16_t>(from, count, limit, to);
    case 4: return copy_numbers<std::uint32_t>(from, count, limit, to);
    default: return copy_numbers<std::uint64_t>(from, count, limit, to);
  }
}

// Bytes of a group's sums in fp32; -1 where a piece is not there.
std::int64_t fp32_bytes(const Share& share, const Group& group) {
  std::int64_t columns = 0;
  for (std::int64_t entry = 0; entry < group.entries(); ++entry) {
    std::uint32_t number;
    std::memcpy(&number, group.pieces.data + 4 * entry, sizeof number);
    if (number >= share.pieces.size()) return -1;
    columns += share.pieces[number].columns;
  }
  return std::int64_t(sizeof(float)) * columns * group.bags();
}

// Counts the unknown ids of each bag of an entry, from 0 on.
void count_unknown(const IdMap& map, const std::int64_t* raw, const std::int64_t* lengths,
                   std::int64_t bags, std::vector<std::int64_t>& rows, std::uint32_t* counts) {
  for (std::int64_t bag = 0; bag < bags; raw += lengths[bag++]) {
    std::int64_t unknown = 0;
    rows.assign(raw, raw + lengths[bag]);
    map_ids(map, rows.data(), lengths[bag], unknown);
    counts[bag] = std::uint32_t(unknown);
  }
}

// Maps the raw ids of a group to rows of its pieces; those without one leave their bags. False:
// Python refuses it.
bool map_bags(const Share& share, const Group& group, AnswerMemory& memory, GroupBags& own) {
  const std::int64_t entries = group.entries(), bags = group.bags();
  own.raw = own.ids;
  own.raw_counts.clear();
  own.unknown.assign(std::size_t(entries * bags), 0);
  own.has_unknown = false;
  std::int64_t* lengths = own.lengths.data();
  std::int64_t taken = 0, kept = 0;
  for (std::int64_t entry = 0; entry < entries; ++entry, lengths += bags) {
    const Piece& piece = piece_of(share, group, entry);
    if (piece.id_map == nullptr) return false;
    std::int64_t count = 0, unknown = 0;
    for (std::int64_t bag = 0; bag < bags; ++bag) count += lengths[bag];
    own.raw_counts.push_back(count);
    if (!map_ids(*piece.id_map, own.ids.data() + taken, count, unknown)) return false;
    if (unknown != 0) {
      own.has_unknown = true;
      count_unknown(*piece.id_map, own.raw.data() + taken, lengths, bags, memory.distinct,
                    own.unknown.data() + entry * bags);
    }
    for (std::int64_t bag = 0; bag < bags; ++bag) {
      std::int64_t left = 0;
      for (const std::int64_t end = taken + lengths[bag]; taken < end; ++taken) {
        if (own.ids[std::size_t(taken)] < 0) continue;
        const std::int64_t row = own.ids[std::size_t(taken)] - piece.first_row;
        if (row < 0 || row >= piece.row_count) return false;
        own.ids[std::size_t(kept)] = row;
        if (!own.weights.empty()) own.weights[std::size_t(kept)] = own.weights[std::size_t(taken)];
        ++kept;
        ++left;
      }
      lengths[bag] = left;
    }
  }
  return true;
}

// Whether lengths and ids are those of bags of the group's pieces; they are widened, and rows then.
bool take_bags(const Share& share, const Group& group, AnswerMemory& all, GroupBags& memory) {
  const std::int64_t entries = group.entries(), bags = group.bags(), count = group.id_count();
  memory.lengths.resize(std::size_t(entries * bags));
  memory.ids.resize(std::size_t(count));
  std::int64_t* lengths = memory.lengths.data();
  if (!widen(group.lengths.data, group.length_bytes, entries * bags, count + 1, lengths))
    return false;
  std::int64_t taken = 0;
  for (std::int64_t entry = 0; entry < entries; ++entry) {
    std::int64_t own = 0;
    // Each is at most all ids, and there are fewer than 2^32: the sum cannot wrap around.
    for (std::int64_t bag = 0; bag < bags; ++bag) own += *lengths++;
    if (own > count - taken) return false;
    const std::int64_t rows = piece_of(share, group, entry).row_count;
    const bool are_inside = own == 0 || widen(group.ids.data + taken * group.id_bytes,
                                              group.id_bytes, own, rows, memory.ids.data() + taken);
    if (!are_inside && !group.raw) return false;
    taken += own;
  }
  if (taken != count) return false;
  memory.weights.resize(group.weights.size == 0 ? 0 : std::size_t(count));
  if (group.weights.size != 0)
    std::memcpy(memory.weights.data(), group.weights.data, std::size_t(group.weights.size));
  return !group.raw || map_bags(share, group, all, memory);
}

// Bytes of the counts of unknown ids; 0 where none is unknown.
std::int64_t unknown_bytes(const AnswerMemory& memory) {
  std::int64_t counts = 0;
  bool has_unknown = false;
  for (std::size_t number = 0; number < memory.request.groups.size(); ++number) {
    const Group& group = memory.request.groups[number];
    if (!group.raw) continue;
    counts += group.entries() * group.bags();
    has_unknown = has_unknown || memory.groups[number].has_unknown;
  }
  return has_unknown ? 4 * counts : 0;
}

void write_unknown(std::uint8_t* to, std::int64_t bytes, const AnswerMemory& memory) {
  to = put_head(5, bytes, to);
  for (std::size_t number = 0; number < memory.request.groups.size(); ++number)
    if (memory.request.groups[number].raw) {
      const std::vector<std::uint32_t>& counts = memory.groups[number].unknown;
      std::memcpy(to, counts.data(), 4 * counts.size());
      to += 4 * counts.size();
    }
}

bool is_whole(const Share& share, const LookupRequest& request) {
  for (const Group& group : request.groups)
    for (std::int64_t entry = 0; entry < group.entries(); ++entry)
      if (!piece_of(share, group, entry).is_whole()) return false;
  return true;
}

// Of the filler's number, behind a group's sums: an odd number of 16 bits makes it longer.
std::int64_t next_filler_bytes(std::int64_t sum_bytes) {
  return 1 + sum_bytes % std::int64_t(sizeof(float));
}

// Finds the columns of each group whose sums answer; returns the bytes of all sums and their heads.
std::size_t set_columns(const Share& share, AnswerMemory& memory) {
  memory.columns.clear();
  const std::uint32_t* row_counts = memory.row_counts.data();
  std::int64_t bytes = 0, filler_bytes = 1, head = kFirstHeadBytes;
  for (const Group& group : memory.request.groups) {
    std::int64_t columns = 0;
    for (std::int64_t entry = 0; entry < group.entries(); ++entry)
      if (*row_counts++ == 0) columns += piece_of(share, group, entry).columns;
    memory.columns.push_back(columns);
    const std::int64_t own = group.sum_bytes * columns * group.bags();
    bytes += head + filler_bytes - 1 + own;
    filler_bytes = next_filler_bytes(own);
    head = kNextHeadBytes;
  }
  return std::size_t(bytes);
}

// Of the sums, whose length has so many bytes.
std::uint8_t* write_sums_head(std::uint8_t* to, std::int64_t filler_bytes, std::int64_t bytes,
                              int length_bytes) {
  *to++ = 2 << 3 | kVarint;
  for (std::int64_t left = filler_bytes - 1; left >= 0; --left) *to++ = left > 0 ? 0x80 : 0;
  *to++ = 1 << 3 | kBytes;
  for (int left = length_bytes - 1; left >= 0; --left, bytes >>= 7)
    *to++ = std::uint8_t((bytes & 0x7f) | (left > 0 ? 0x80 : 0));
  return to;
}

}  // namespace

void Shares::drop(const Share* share) {
  Held gone;
  {
    const std::lock_guard<std::mutex> lock(lock_);
    const auto found = std::find_if(shares_.begin(), shares_.end(),
                                    [share](const Held& held) { return held.get() == share; });
    if (found == shares_.end()) return;
    gone = *found;
    shares_.erase(found);
  }
  // A lookup takes milliseconds, and versions go seldom.
  while (gone.use_count() > 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

Answer* answer_lookup(Shares& shares, Bytes message) {
  static thread_local AnswerMemory memory;
  const double began = monotonic();
  memory.cost = {};
  LookupRequest& request = memory.request;
  if (!read_lookup(message, request)) return nullptr;
  const Shares::Held share = shares.find(request);
  if (share == nullptr) return nullptr;
  std::int64_t entries = 0, bytes = 0;
  for (const Group& group : request.groups) {
    const std::int64_t own = fp32_bytes(*share, group);
    entries += group.entries();
    bytes += own;
    if (own < 0 || entries > share->most_entries || bytes > share->most_answer_bytes ||
        bytes > kMostFirstBytes)
      return nullptr;
  }
  memory.groups.resize(std::max(memory.groups.size(), request.groups.size()));
  for (std::size_t number = 0; number < request.groups.size(); ++number)
    if (!take_bags(*share, request.groups[number], memory, memory.groups[number])) return nullptr;
  const Chosen chosen = choose(*share, memory);
  const std::int64_t counts = 4 * entries;
  std::size_t message_bytes = set_columns(*share, memory);
  if (chosen.has_rows)
    message_bytes +=
        std::size_t(head_bytes(counts) + counts + head_bytes(chosen.row_bytes) + chosen.row_bytes);
  const std::int64_t unknown = unknown_bytes(memory);
  if (unknown != 0) message_bytes += std::size_t(head_bytes(unknown) + unknown);
  std::unique_ptr<Answer, void (*)(Answer*)> answer(Answer::make_room(std::uint32_t(message_bytes)),
                                                    Answer::free_all);
  std::uint8_t* to = answer->data() + kPrefixBytes;
  const std::uint32_t* row_counts = memory.row_counts.data();
  int length_bytes = kFirstLengthBytes;
  std::int64_t filler_bytes = 1;
  for (std::size_t number = 0; number < request.groups.size(); ++number) {
    const Group& group = request.groups[number];
    const std::int64_t columns = memory.columns[number];
    const std::int64_t own = group.sum_bytes * columns * group.bags();
    to = write_sums_head(to, filler_bytes, own, length_bytes);
    pool(*share, group, memory.groups[number], row_counts, columns, memory, to);
    to += own;
    filler_bytes = next_filler_bytes(own);
    row_counts += group.entries();
    length_bytes = kNextLengthBytes;
  }
  if (chosen.has_rows) {
    to = put_head(3, counts, to);
    std::memcpy(to, memory.row_counts.data(), std::size_t(counts));
    to = put_head(4, chosen.row_bytes, to + counts);
    to = copy_rows(*share, memory, to);
  }
  if (unknown != 0) write_unknown(to, unknown, memory);
  if (!is_whole(*share, request)) return nullptr;
  memory.cost.received = std::int64_t(message.size);
  memory.cost.sent = std::int64_t(message_bytes);
  memory.cost.seconds = monotonic() - began;
  shares.counts.add(memory.cost);
  return answer.release();
}

}  // namespace sharded_infer::lookups
