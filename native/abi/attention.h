// Attention whose scores never leave the cache.
//
//     for each query:
//         score[key] = sum of query[k] * key[k] * scale + bias[key]
//         weight = softmax(score)                       or silu(score), each by itself
//         weight = 0                                    where the mask says so
//         out = sum of weight[key] * value[key] / divisor
//
// A result depends on its own query alone, and a sum goes over the keys in ascending order. Keys
// that no query of a tile reads are left out: what is not a number there stays there.
#pragma once
#include <cstdint>

#include "abi/exported.h"

namespace sharded_infer {

// The function from scores to weights.
enum class Weights : std::int32_t { kSoftmax, kSilu };

struct Attention {
  const float* query;         // [samples, heads, queries, width]
  const float* key;           // [samples, heads, keys, width]
  const float* value;         // [samples, heads, keys, value_width]
  const float* bias;          // [samples, heads, queries, keys], or null
  const std::uint8_t* mask;   // as the bias: not 0 where a weight is 0; or null
  const std::int64_t* first;  // [samples], the position of the first query among the keys; null: 0
  float* out;                 // [samples, queries, heads, value_width], without gaps
  float* space;               // space_of() floats
  // Numbers from one sample, head and row to the next; columns lie side by side. One structure in
  // another is slower to fill for Python.
  std::int64_t query_sample, query_head, query_row;
  std::int64_t key_sample, key_head, key_row;
  std::int64_t value_sample, value_head, value_row;
  std::int64_t bias_sample, bias_head, bias_row;
  std::int64_t mask_sample, mask_head, mask_row;
  std::int64_t samples, heads, queries, keys, width, value_width;
  float scale;
  float divisor;
  Weights weights;
  std::int32_t causal;  // keys after a query's own position weigh nothing
};

}  // namespace sharded_infer

extern "C" {
// Floats that an attention needs as its space.
EXPORTED std::int64_t sharded_infer_attention_space(const sharded_infer::Attention* attention);
EXPORTED void sharded_infer_attention(std::int32_t instruction_set,
                                      const sharded_infer::Attention* attention);
}
