// See typed_contents.h.
#include "typed_contents.h"

namespace sharded_infer {
namespace {

// Field numbers of InferTensorContents.
std::uint32_t field_of(std::int32_t datatype) {
  switch (datatype) {
    case kInt32Type: return 2;
    case kInt64Type: return 3;
    case kFp32Type: return 6;
    default: return 8;
  }
}

template <class Number>
bool append(Number number, std::vector<std::uint8_t>& raw) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(&number);
  raw.insert(raw.end(), bytes, bytes + sizeof number);
  return true;
}

bool append_number(WireReader& reader, std::int32_t datatype, std::vector<std::uint8_t>& raw) {
  if (datatype == kFp32Type) {
    const std::uint8_t* number = reader.at();
    if (!reader.skip(4)) return false;
    raw.insert(raw.end(), number, number + 4);
    return true;
  }
  std::uint64_t bits;
  if (!reader.read_varint(bits)) return false;
  const auto number = static_cast<std::int64_t>(bits);
  if (datatype == kInt64Type) return append(number, raw);
  const auto narrow = static_cast<std::int32_t>(number);
  return narrow == number && append(narrow, raw);
}

bool append_string(Bytes text, std::vector<std::uint8_t>& raw) {
  append(static_cast<std::uint32_t>(text.size), raw);
  raw.insert(raw.end(), text.data, text.data + text.size);
  return true;
}

bool append_packed(Bytes numbers, std::int32_t datatype, std::vector<std::uint8_t>& raw) {
  WireReader reader(numbers);
  while (!reader.done())
    if (!append_number(reader, datatype, raw)) return false;
  return true;
}

}  // namespace

bool append_raw(Bytes contents, std::int32_t datatype, std::vector<std::uint8_t>& raw) {
  WireReader reader(contents);
  const std::uint32_t unpacked = datatype == kFp32Type ? kFixed32 : kVarint;
  while (!reader.done()) {
    std::uint32_t field, type;
    if (!reader.read_tag(field, type) || field != field_of(datatype)) return false;
    if (type == unpacked && datatype != kBytesType) {
      if (!append_number(reader, datatype, raw)) return false;
      continue;
    }
    Bytes bytes;
    if (type != kBytes || !reader.read_bytes(bytes)) return false;
    if (!(datatype == kBytesType ? append_string(bytes, raw) : append_packed(bytes, datatype, raw)))
      return false;
  }
  return true;
}

}  // namespace sharded_infer
