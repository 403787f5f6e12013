#include "row_cache.h"

#include <algorithm>

namespace sharded_infer {

RowCache::RowCache(std::uint32_t slots)
    : slots_(slots),
      index_(slots + slots / 2 + 2, Entry{0, kNone}),
      window_slots_(std::max<std::size_t>(1, slots / kWindowShare)),
      sketch_(slots) {}

RowCache::Found RowCache::find(std::uint32_t row, std::uint64_t hash) {
  sketch_.add(hash);
  for (std::size_t at = home(hash); index_[at].slot != kNone; at = after(at)) {
    if (index_[at].row != row) continue;
    Slot& slot = slots_[index_[at].slot];
    ++slot.pins;
    return {slot.is_read ? kBeingRead : kHeld, index_[at].slot};
  }
  const std::uint32_t slot = slot_for(hash);
  if (slot == kNone) return {kNoSlot, kNone};
  add(row, hash, slot);
  return {kToBeRead, slot};
}

void RowCache::unpin(std::uint32_t slot) {
  if (--slots_[slot].pins == 0 && !slots_[slot].is_held) free(slot);
}

void RowCache::lose(std::uint32_t slot) {
  slots_[slot].is_read = 0;
  remove(slot);
  if (slots_[slot].pins == 0) free(slot);
}

void RowCache::free(std::uint32_t slot) {
  if (slots_[slot].is_free) return;
  slots_[slot].is_free = 1;
  free_.push_back(slot);
}

std::uint32_t RowCache::slot_for(std::uint64_t hash) {
  if (!free_.empty()) {
    const std::uint32_t slot = free_.back();
    free_.pop_back();
    return slot;
  }
  if (never_used_ < size()) return never_used_++;
  if (size() == 0) return kNone;
  const std::uint32_t old = oldest(), rare = least_asked();
  if (old == kNone) {
    // The window is full of rows in use: this one would push out another without having been
    // weighed.
    if (rare == kNone || sketch_.count(hash) <= sketch_.count(hash_of_row(slots_[rare].row)))
      return kNone;
    remove(rare);
    return rare;
  }
  const bool stays = rare != kNone && sketch_.count(hash_of_row(slots_[old].row)) >
                                          sketch_.count(hash_of_row(slots_[rare].row));
  slots_[old].is_new = 0;
  const std::uint32_t leaves = stays ? rare : old;
  remove(leaves);
  return leaves;
}

// The window's oldest row that may leave; it has left the window. None: the window has room, or its
// rows are in use.
std::uint32_t RowCache::oldest() {
  for (int turn = 0; turn < kTurns && !window_.empty(); ++turn) {
    const std::uint32_t slot = window_.front();
    window_.pop_front();
    if (!slots_[slot].is_new) continue;  // lost, and perhaps taken again
    if (may_leave(slot)) return slot;
    window_.push_back(slot);
  }
  return kNone;
}

std::uint32_t RowCache::least_asked() {
  std::uint32_t found = kNone;
  int least = 0, seen = 0;
  for (int turn = 0; turn < kTurns * kSampled && seen < kSampled; ++turn) {
    random_ ^= random_ << 13;
    random_ ^= random_ >> 7;
    random_ ^= random_ << 17;
    const auto slot = static_cast<std::uint32_t>((random_ >> 32) * size() >> 32);
    if (slots_[slot].is_new || !may_leave(slot)) continue;
    const int count = sketch_.count(hash_of_row(slots_[slot].row));
    if (seen++ == 0 || count < least) {
      found = slot;
      least = count;
    }
  }
  return found;
}

void RowCache::add(std::uint32_t row, std::uint64_t hash, std::uint32_t slot) {
  std::size_t at = home(hash);
  while (index_[at].slot != kNone) at = after(at);
  index_[at] = {row, slot};
  slots_[slot] = {row, 1, 1, 1, 1, 0};
  ++used_;
  window_.push_back(slot);
  // While slots are free, the oldest of the window stay without competing.
  while (window_.size() > window_slots_) {
    slots_[window_.front()].is_new = 0;
    window_.pop_front();
  }
}

void RowCache::remove(std::uint32_t slot) {
  const std::uint32_t row = slots_[slot].row;
  slots_[slot].is_held = slots_[slot].is_new = 0;
  --used_;
  std::size_t gap = home(hash_of_row(row));
  while (index_[gap].slot != slot) gap = after(gap);
  // What would not be found behind the gap moves into it.
  for (std::size_t at = after(gap); index_[at].slot != kNone; at = after(at)) {
    const std::size_t wanted = home(hash_of_row(index_[at].row));
    const bool stays = gap < at ? gap < wanted && wanted <= at : gap < wanted || wanted <= at;
    if (stays) continue;
    index_[gap] = index_[at];
    gap = at;
  }
  index_[gap] = {0, kNone};
}

}  // namespace sharded_infer
