// Ids and lengths as they came, INT64, INT32 or UINT32 at any address, to int64 ones that are
// checked.
#pragma once
#include "reader/request.h"

namespace sharded_infer {

// Copies n numbers. Whether each is in [0, limit): the sign of an `or` says it, which vectorises
// where comparisons of 64 bits do not.
template <class Number>
bool copy_numbers(const std::uint8_t* from, std::int64_t count, std::int64_t limit,
                  std::int64_t* to) {
  std::uint64_t signs = 0;
  const auto last = static_cast<std::uint64_t>(limit - 1);
  for (std::int64_t i = 0; i < count; ++i) {
    Number number;
    std::memcpy(&number, from + i * sizeof number, sizeof number);
    const std::int64_t wide = number;
    const auto bits = static_cast<std::uint64_t>(wide);
    signs |= bits | (last - bits);
    to[i] = wide;
  }
  return signs >> 63 == 0;
}

inline bool copy_numbers(const Tensor& tensor, std::int64_t first, std::int64_t count,
                         std::int64_t limit, std::int64_t* to) {
  if (tensor.datatype == kInt64Type)
    return copy_numbers<std::int64_t>(tensor.data + first * 8, count, limit, to);
  if (tensor.datatype == kUint32Type)
    return copy_numbers<std::uint32_t>(tensor.data + first * 4, count, limit, to);
  return copy_numbers<std::int32_t>(tensor.data + first * 4, count, limit, to);
}

}  // namespace sharded_infer
