// Elements of a BYTES tensor, each its length in 4 bytes and its bytes, to raw ids;
// serving/protocol/wire_strings.py is the reference.
#pragma once
#include "id_hash.h"
#include "wire.h"

#include <cstring>

namespace sharded_infer {

constexpr std::int64_t kLengthBytes = 4;

// Whether the bytes can be those of so many elements, before there is memory for their ids.
inline bool may_hold_strings(Bytes bytes, std::int64_t elements) {
  return elements == 0 ? bytes.size == 0 : bytes.size / kLengthBytes >= elements;
}

// How strings are hashed.
struct Hashing {
  StringHash hash;
  std::uint64_t seed;
};

// The raw id of each element. False where the bytes are not exactly those of so many elements.
inline bool hash_elements(Bytes bytes, std::int64_t elements, Hashing by, std::int64_t* to) {
  const std::uint8_t* at = bytes.data;
  std::int64_t left = bytes.size;
  for (std::int64_t element = 0; element < elements; ++element) {
    std::uint32_t size;
    if (left < kLengthBytes) return false;
    std::memcpy(&size, at, kLengthBytes);
    at += kLengthBytes;
    left -= kLengthBytes;
    if (size > left) return false;
    to[element] = static_cast<std::int64_t>(hash_string(by.hash, at, size, by.seed));
    at += size;
    left -= size;
  }
  return left == 0;
}

}  // namespace sharded_infer
