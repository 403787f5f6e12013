// Which rows lie in which slots of a cache, and which one gives way: no rows, no reads and no locks
// are here.
//
//     find(row):
//         count it in the sketch
//         it has a slot: pin the slot
//         else the slot that is free, or that of the row that gives way: pin it; the row is to be
//         read
//
// A new row enters by a window of kWindowShare of the slots. The oldest row of a full window and
// one of the others, the least asked for of kSampled, compete for staying: rows that are read once
// push nothing out (W-TinyLFU: Einziger, Friedman and Manes, 2017, section 4). Where all slots that
// were looked at are pinned, a row has none.
#pragma once
#include "frequency_sketch.h"

#include <cstdint>
#include <deque>
#include <vector>

namespace sharded_infer {

inline std::uint64_t hash_of_row(std::uint32_t row) {
  // The finalizer of splitmix64.
  std::uint64_t hash = (row + std::uint64_t{1}) * 0x9E3779B97F4A7C15u;
  hash = (hash ^ hash >> 30) * 0xBF58476D1CE4E5B9u;
  hash = (hash ^ hash >> 27) * 0x94D049BB133111EBu;
  return hash ^ hash >> 31;
}

class RowCache {
 public:
  static constexpr std::uint32_t kNone = 0xFFFFFFFF;

  enum State { kHeld, kBeingRead, kToBeRead, kNoSlot };

  struct Found {
    State state;
    std::uint32_t slot;
  };

  explicit RowCache(std::uint32_t slots);

  void fetch(std::uint64_t hash) const {
    __builtin_prefetch(&index_[home(hash)]);
    sketch_.fetch(hash);
  }

  Found find(std::uint32_t row, std::uint64_t hash);

  void unpin(std::uint32_t slot);

  // The row of a slot has come, or cannot be read.
  void fill(std::uint32_t slot) { slots_[slot].is_read = 0; }
  void lose(std::uint32_t slot);

  bool is_being_read(std::uint32_t slot) const { return slots_[slot].is_read != 0; }
  std::uint32_t size() const { return static_cast<std::uint32_t>(slots_.size()); }
  std::uint32_t used() const { return used_; }

 private:
  static constexpr int kSampled = 8, kTurns = 4, kWindowShare = 100;

  struct Slot {
    std::uint32_t row;
    std::uint32_t pins : 28, is_held : 1, is_read : 1, is_new : 1, is_free : 1;
  };

  struct Entry {
    std::uint32_t row, slot;  // kNone: nothing is here
  };

  std::size_t home(std::uint64_t hash) const {
    return static_cast<std::size_t>((hash >> 32) * index_.size() >> 32);
  }
  std::size_t after(std::size_t at) const { return ++at == index_.size() ? 0 : at; }
  bool may_leave(std::uint32_t slot) const {
    const Slot& found = slots_[slot];
    return found.pins == 0 && found.is_held && !found.is_read;
  }

  std::uint32_t slot_for(std::uint64_t hash);
  std::uint32_t oldest();
  std::uint32_t least_asked();
  void add(std::uint32_t row, std::uint64_t hash, std::uint32_t slot);
  void remove(std::uint32_t slot);
  void free(std::uint32_t slot);

  std::vector<Slot> slots_;
  std::vector<Entry> index_;
  std::vector<std::uint32_t> free_;
  std::deque<std::uint32_t> window_;
  std::size_t window_slots_;
  FrequencySketch sketch_;
  std::uint32_t never_used_ = 0, used_ = 0;
  std::uint64_t random_ = 1;
};

}  // namespace sharded_infer
