// Attention biases of pairs of positions, by how far apart a number of theirs is, such as a time.
//
//     for each position, for each other one:
//         out = f(numbers[other] - numbers[position]) + fixed[position, other]
//
// f is constant between thresholds. Numbers in their order have ascending keys: their bits, all but
// the sign flipped in negative ones. A table has a cell for each range of 2^shift keys, in which at
// most one threshold lies:
//
//     f = values[cell] below the cell's threshold, else values[cell + 1]
#pragma once
#include <cstdint>

namespace sharded_infer {

struct PairBiases {
  const float* numbers;            // [positions]
  const float* fixed;              // [positions, fixed_stride], or null
  float* out;                      // [positions, positions]
  const std::int32_t* thresholds;  // [cells], keys; the least of all where a cell has none
  const float* values;             // [cells + 1]
  std::int64_t fixed_stride;
  std::int64_t positions;
  std::int64_t first;  // the first position whose biases are written
  std::int32_t cells;
  std::int32_t
      first_cell;  // keys / 2^shift of the first one; keys before it are of the first one, too
  std::int32_t shift;
  float no_number;        // f of a difference that is none
  float least, greatest;  // f of minus infinity, and of infinity
  std::int32_t turned;    // the difference is numbers[position] - numbers[other]
  std::int32_t causal;    // positions behind a position's own need none
};

}  // namespace sharded_infer
