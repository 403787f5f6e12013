// Waiting requests in order of key and sequence, with the sums of any first part of them.
//
// The order is cut into blocks that keep the sums of their requests. Queueing at the end and
// leaving at the head touch one block. Elsewhere one block's places move. A sum adds whole blocks
// and the places of one.
#pragma once
#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "request.h"

namespace sharded_infer::scheduler {

inline void Sums::add(const Sums& other) {
  requests += other.requests;
  samples += other.samples;
  alone_ns += other.alone_ns;
}

inline void Sums::count(const Request& request, std::int64_t sign) {
  requests += sign;
  samples += sign * request.samples;
  alone_ns += sign * request.alone_ns;
}

class Order {
  static constexpr std::size_t kPlaces = 128;

  struct Block {
    // The places from `first` to before `last` are taken.
    std::size_t first = 0, last = 0;
    Sums sums{};
    // Bounds on its requests' deadlines and latest ends; leaving does not narrow them.
    double earliest_deadline = kForever;
    double latest_end = -kForever;
    Request* places[kPlaces];
    // Beside the places, so that a search reads few requests.
    double keys[kPlaces];

    std::size_t size() const { return last - first; }
    // The first place after all requests with this key or an earlier one.
    std::size_t after(double key) const {
      return std::upper_bound(keys + first, keys + last, key) - keys;
    }
    void set(std::size_t at, Request& request) {
      places[at] = &request;
      keys[at] = request.key;
    }
    void count(const Request& request) {
      sums.count(request, 1);
      earliest_deadline = std::min(earliest_deadline, request.deadline);
      latest_end = std::max(latest_end, request.latest_end);
    }
    void clear() {
      first = last = 0;
      sums = {};
      earliest_deadline = kForever;
      latest_end = -kForever;
    }
  };

 public:
  // Goes through the requests in order; false behind the last.
  class Cursor {
   public:
    explicit operator bool() const { return block_ < order_->blocks_.size(); }
    Request& operator*() const { return *order_->blocks_[block_]->places[at_]; }
    void next() {
      if (++at_ < order_->blocks_[block_]->last) return;
      if (++block_ < order_->blocks_.size()) at_ = order_->blocks_[block_]->first;
    }
    // Passes requests that all end before a time, a block of them at once; returns how many.
    std::int64_t skip(double now, double seconds) {
      std::int64_t skipped = 0;
      for (; *this; ++block_) {
        const Block& block = *order_->blocks_[block_];
        if (at_ != block.first || !(block.latest_end - now < seconds)) break;
        skipped += static_cast<std::int64_t>(block.size());
        if (block_ + 1 < order_->blocks_.size()) at_ = order_->blocks_[block_ + 1]->first;
      }
      return skipped;
    }

   private:
    friend class Order;
    explicit Cursor(const Order& order) : order_(&order) {
      if (*this) at_ = order.blocks_[0]->first;
    }
    const Order* order_;
    std::size_t block_ = 0, at_ = 0;
  };

  bool empty() const { return blocks_.empty(); }
  const Sums& sums() const { return sums_; }
  Cursor begin() const { return Cursor(*this); }
  Request& head() const { return *blocks_.front()->places[blocks_.front()->first]; }

  // Places a request behind all with its key or an earlier one.
  void add(Request& request) {
    sums_.count(request, 1);
    std::size_t b = block_after(request.key);
    if (b == blocks_.size()) {
      if (b == 0 || blocks_[b - 1]->last == kPlaces) {
        blocks_.push_back(unused());
      } else {
        --b;
      }
    } else if (blocks_[b]->size() == kPlaces) {
      split(b);
      if (blocks_[b]->keys[blocks_[b]->last - 1] <= request.key) ++b;
    }
    Block& block = *blocks_[b];
    std::size_t at = block.after(request.key);
    if (block.last < kPlaces) {
      shift(block, at, block.last, 1);
      ++block.last;
    } else {
      shift(block, block.first, at, -1);
      --block.first;
      --at;
    }
    block.set(at, request);
    block.count(request);
  }

  void remove(Request& request) {
    sums_.count(request, -1);
    const std::size_t b = &request == &head() ? 0 : block_of(request);
    Block& block = *blocks_[b];
    const std::size_t at = place_of(block, request);
    block.sums.count(request, -1);
    if (at - block.first < block.last - at) {
      shift(block, block.first, at, 1);
      ++block.first;
    } else {
      shift(block, at + 1, block.last, -1);
      --block.last;
    }
    if (block.size() == 0) {
      give_back(b);
    } else if (block.size() <= kPlaces / 4 && b + 1 < blocks_.size() &&
               block.size() + blocks_[b + 1]->size() <= kPlaces / 2) {
      merge_next(b);
    }
  }

  // Of all requests with this key or an earlier one.
  Sums up_to(double key) const {
    const std::size_t b = block_after(key);
    if (b == blocks_.size()) return sums_;
    Sums found{};
    for (std::size_t before = 0; before < b; ++before) found.add(blocks_[before]->sums);
    const Block& block = *blocks_[b];
    const std::size_t end = block.after(key);
    for (std::size_t at = block.first; at < end; ++at) found.count(*block.places[at], 1);
    return found;
  }

  // The last request with a deadline, and the samples up to and with it; null if none has one.
  std::pair<Request*, std::int64_t> last_with_deadline() const {
    std::int64_t samples = sums_.samples;
    for (std::size_t b = blocks_.size(); b-- > 0;) {
      const Block& block = *blocks_[b];
      if (block.earliest_deadline == kForever) {
        samples -= block.sums.samples;
        continue;
      }
      for (std::size_t at = block.last; at-- > block.first;) {
        if (block.places[at]->deadline != kForever) return {block.places[at], samples};
        samples -= block.places[at]->samples;
      }
    }
    return {nullptr, 0};
  }

  // Adds the requests whose deadline has passed, in order.
  void find_late(double now, std::vector<Request*>& late) const {
    for (const auto& block : blocks_) {
      if (block->earliest_deadline > now) continue;
      double earliest = kForever;
      for (std::size_t at = block->first; at < block->last; ++at) {
        if (block->places[at]->deadline <= now)
          late.push_back(block->places[at]);
        else
          earliest = std::min(earliest, block->places[at]->deadline);
      }
      // The late ones leave now.
      block->earliest_deadline = earliest;
    }
  }

 private:
  using Blocks = std::vector<std::unique_ptr<Block>>;

  // The first block with a later key.
  std::size_t block_after(double key) const {
    if (blocks_.empty() || blocks_.back()->keys[blocks_.back()->last - 1] <= key)
      return blocks_.size();
    return std::partition_point(blocks_.begin(), blocks_.end(),
                                [key](const std::unique_ptr<Block>& block) {
                                  return block->keys[block->last - 1] <= key;
                                }) -
           blocks_.begin();
  }

  static bool is_before(const Request& one, const Request& other) {
    return one.key < other.key || (one.key == other.key && one.sequence < other.sequence);
  }

  std::size_t block_of(const Request& request) const {
    return std::partition_point(blocks_.begin(), blocks_.end(),
                                [&request](const std::unique_ptr<Block>& block) {
                                  return is_before(*block->places[block->last - 1], request);
                                }) -
           blocks_.begin();
  }

  static std::size_t place_of(const Block& block, const Request& request) {
    if (block.places[block.first] == &request) return block.first;
    return std::partition_point(
               block.places + block.first, block.places + block.last,
               [&request](const Request* other) { return is_before(*other, request); }) -
           block.places;
  }

  // Moves the places from `begin` to before `end` by one, up or down.
  static void shift(Block& block, std::size_t begin, std::size_t end, int by) {
    if (by > 0) {
      std::move_backward(block.places + begin, block.places + end, block.places + end + 1);
      std::move_backward(block.keys + begin, block.keys + end, block.keys + end + 1);
    } else {
      std::move(block.places + begin, block.places + end, block.places + begin - 1);
      std::move(block.keys + begin, block.keys + end, block.keys + begin - 1);
    }
  }

  std::unique_ptr<Block> unused() {
    if (unused_.empty()) return std::make_unique<Block>();
    std::unique_ptr<Block> block = std::move(unused_.back());
    unused_.pop_back();
    return block;
  }

  void give_back(std::size_t b) {
    blocks_[b]->clear();
    unused_.push_back(std::move(blocks_[b]));
    blocks_.erase(blocks_.begin() + static_cast<std::ptrdiff_t>(b));
  }

  static void append(Block& block, const Block& from, std::size_t begin, std::size_t end) {
    for (std::size_t at = begin; at < end; ++at) {
      block.set(block.last++, *from.places[at]);
      block.count(*from.places[at]);
    }
  }

  void split(std::size_t b) {
    std::unique_ptr<Block> lower = unused(), upper = unused();
    const Block& whole = *blocks_[b];
    const std::size_t middle = whole.first + whole.size() / 2;
    append(*lower, whole, whole.first, middle);
    append(*upper, whole, middle, whole.last);
    blocks_.insert(blocks_.begin() + static_cast<std::ptrdiff_t>(b) + 1, std::move(upper));
    blocks_[b].swap(lower);
    lower->clear();
    unused_.push_back(std::move(lower));
  }

  void merge_next(std::size_t b) {
    std::unique_ptr<Block> both = unused();
    for (const Block* part : {blocks_[b].get(), blocks_[b + 1].get()})
      append(*both, *part, part->first, part->last);
    give_back(b);
    blocks_[b].swap(both);
    both->clear();
    unused_.push_back(std::move(both));
  }

  Sums sums_{};
  Blocks blocks_;
  // Kept, so that a request allocates nothing.
  Blocks unused_;
};

}  // namespace sharded_infer::scheduler
