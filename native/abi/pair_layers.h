// Layers on each pair of a candidate and a position, whose numbers never leave the cache: the
// weights of a Deep Interest Network's history (Zhou et al. 2018, arXiv:1706.06978).
//
//     for each candidate:
//         y = (candidate * W) @ positions.T + by_candidate + by_position.T     [outputs, length]
//         for each further layer: y = W @ activated(y) + bias
//         out = y                                                              one output
//
// A product W @ (position * candidate) becomes one of W * candidate, so that only the weight is
// multiplied again for each candidate. A sum depends neither on the number of candidates nor on the
// length.
#pragma once
#include <cstdint>

#include "abi/exported.h"

namespace sharded_infer {

// The function of a layer's sums; a slope is PReLU.
enum class Activation : std::int32_t { kLinear, kRelu, kSlope, kSigmoid };

struct Layer {
  const float* weight;  // [outputs, inputs]
  const float* bias;    // [outputs], or null
  const float* slope;   // [outputs], of numbers below 0, or null
  std::int64_t inputs;
  std::int64_t outputs;
  Activation activation;
};

struct PairLayers {
  const float* positions;     // [length, inputs]
  const float* candidates;    // [count, inputs]
  const float* by_position;   // [length, outputs of the first layer], or null
  const float* by_candidate;  // [count, outputs of the first layer], or null
  const Layer* layers;        // the last has one output
  float* out;                 // [count, length]
  float* space;               // space_of() floats
  std::int64_t count;
  std::int64_t length;
  std::int64_t layer_count;
};

}  // namespace sharded_infer

extern "C" {
// Floats that layers on pairs need as their space.
EXPORTED std::int64_t sharded_infer_pair_layers_space(const sharded_infer::PairLayers* pairs);
EXPORTED void sharded_infer_pair_layers(std::int32_t instruction_set,
                                        const sharded_infer::PairLayers* pairs);
}
