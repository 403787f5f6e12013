// One InferInputTensor, whose contents follow in `raw_input_contents` unless they are typed or in
// shared memory.
#pragma once
#include "abi/reader.h"
#include "parameter.h"

#include <algorithm>
#include <cstring>

namespace sharded_infer {

// UINT32 comes in our own protocol alone.
enum Datatype : std::int32_t {
  kNoDatatype = 0,
  kInt64Type = 1,
  kInt32Type = 2,
  kFp32Type = 3,
  kUint32Type = 4,
  kBytesType = 5,
};

// Of a number.
inline std::int64_t item_bytes(std::int32_t datatype) { return datatype == kInt64Type ? 8 : 4; }

// Sizes above are unusual: no message has so many bytes, so products of two cannot overflow.
constexpr std::int64_t kMaxSize = std::int64_t{1} << 31;
// Of numbers of a sequence; other inputs have two sizes at most.
constexpr std::int32_t kMaxRank = 3;

struct Input {
  Bytes name;
  std::int32_t datatype = kNoDatatype;
  std::int32_t rank = 0;
  std::int64_t sizes[kMaxRank] = {};
  Bytes typed;  // InferTensorContents; without data: there are none
  Span span;    // in shared memory

  // The product of the sizes; in place of one above `kMaxSize`, any that is not below it.
  std::int64_t elements() const {
    std::int64_t product = sizes[0];
    for (std::int32_t axis = 1; axis < rank; ++axis)
      product = std::min(product, kMaxSize) * sizes[axis];
    return product;
  }

  bool add_size(std::uint64_t size) {
    if (rank == kMaxRank || size >= static_cast<std::uint64_t>(kMaxSize)) return false;
    sizes[rank++] = static_cast<std::int64_t>(size);
    return true;
  }
};

inline std::int32_t datatype_of(Bytes name) {
  if (name.size == 5 && std::memcmp(name.data, "INT64", 5) == 0) return kInt64Type;
  if (name.size == 5 && std::memcmp(name.data, "INT32", 5) == 0) return kInt32Type;
  if (name.size == 4 && std::memcmp(name.data, "FP32", 4) == 0) return kFp32Type;
  if (name.size == 5 && std::memcmp(name.data, "BYTES", 5) == 0) return kBytesType;
  return kNoDatatype;
}

// A name, one of the datatypes, one to three sizes, and perhaps typed contents or a span.
inline bool read_input(Bytes message, Input& input) {
  WireReader reader(message);
  while (!reader.done()) {
    std::uint32_t field, type;
    Bytes bytes;
    std::uint64_t size;
    if (!reader.read_tag(field, type)) return false;
    if (field == 3 && type == kVarint) {
      if (!reader.read_varint(size) || !input.add_size(size)) return false;
      continue;
    }
    if (type != kBytes || !reader.read_bytes(bytes)) return false;
    if (field == 1) {
      if (input.name.data != nullptr) return false;
      input.name = bytes;
    } else if (field == 2) {
      if (input.datatype != kNoDatatype) return false;
      input.datatype = datatype_of(bytes);
      if (input.datatype == kNoDatatype) return false;
    } else if (field == 3) {
      WireReader sizes(bytes);
      while (!sizes.done())
        if (!sizes.read_varint(size) || !input.add_size(size)) return false;
    } else if (field == 4) {
      if (!read_span_parameter(bytes, input.span)) return false;
    } else if (field == 5) {
      if (input.typed.data != nullptr) return false;
      input.typed = bytes;
    } else {
      return false;
    }
  }
  if (input.datatype == kNoDatatype || input.rank == 0) return false;
  return input.span.is_none() || (input.span.is_whole() && input.typed.data == nullptr);
}

}  // namespace sharded_infer
