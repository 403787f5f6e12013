// The distinct ids of a list, in the order in which they first come.
//
//     found = {}
//     for each id:
//         if it is not in found: give up where found has `most`, else number it len(found)
//         positions[i] = its number
//
// The factor of the hash is drawn for each process: nobody can send ids that all lie in one place.
#pragma once
#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

namespace sharded_infer::lookups {

class Distinct {
 public:
  // The number of distinct ids; -1: there are more than `most`.
  //
  // distinct: room for the smaller of count and most; positions: [count], or null.
  std::int64_t number(const std::int64_t* ids, std::int64_t count, std::int64_t most,
                      std::int64_t* distinct, std::int64_t* positions) {
    make_room(std::min(count, most));
    std::int64_t found = 0;
    for (std::int64_t at = 0; at < count; ++at) {
      std::size_t place = std::size_t(std::uint64_t(ids[at]) * factor() >> shift_);
      for (;; place = (place + 1) & mask_) {
        // Numbers of earlier lists are at most `used_`.
        if (slots_[place] <= used_) {
          if (found == most) return end(found, -1);
          distinct[found++] = ids[at];
          slots_[place] = used_ + std::uint32_t(found);
          break;
        }
        if (distinct[slots_[place] - used_ - 1] == ids[at]) break;
      }
      if (positions != nullptr) positions[at] = std::int64_t(slots_[place] - used_) - 1;
    }
    return end(found, found);
  }

 private:
  static constexpr int kLeastBits = 4;
  static constexpr std::uint32_t kMostUsed = 1u << 31;

  static std::uint64_t factor() {
    static const std::uint64_t drawn = [] {
      std::random_device device;
      return (std::uint64_t(device()) << 32 | device()) | 1;
    }();
    return drawn;
  }

  // At most half of the slots are taken: a list has less than 2^31 ids.
  void make_room(std::int64_t most) {
    int bits = kLeastBits;
    while (std::int64_t(1) << bits < 2 * most) ++bits;
    const std::size_t size = std::size_t(1) << bits;
    if (size > slots_.size()) {
      slots_.assign(size, 0);
      used_ = 0;
    }
    shift_ = 64 - bits;
    mask_ = size - 1;
  }

  std::int64_t end(std::int64_t found, std::int64_t result) {
    used_ += std::uint32_t(found);
    if (used_ > kMostUsed) {
      std::fill(slots_.begin(), slots_.end(), 0);
      used_ = 0;
    }
    return result;
  }

  std::vector<std::uint32_t> slots_;
  std::uint32_t used_ = 0;
  std::size_t mask_ = 0;
  int shift_ = 0;
};

}  // namespace sharded_infer::lookups
