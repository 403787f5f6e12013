// Which of several weighted labels a request goes to; serving/routing/weighted_choice.py is the
// reference, and says why.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "reader/header.h"

namespace sharded_infer::call {

class Route;

// A label with a weight, as Python describes it.
struct Share {
  std::string label;
  std::uint64_t hash;
  std::uint64_t weight;
  Route* route;
};

// The finalizer of MurmurHash3 (Appleby).
inline std::uint64_t mixed(std::uint64_t word) {
  word = (word ^ word >> 33) * 0xFF51AFD7ED558CCDu;
  word = (word ^ word >> 33) * 0xC4CEB9FE1A85EC53u;
  return word ^ word >> 33;
}

// The position of a request's key; false where it has none.
bool position_of(Bytes message, const Header& header, std::uint64_t seed, std::uint64_t& position);

// The share of a request at a position. There is one at least.
const Share& choose(const std::vector<Share>& shares, std::uint64_t position);

}  // namespace sharded_infer::call
