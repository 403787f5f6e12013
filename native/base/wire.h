// Protobuf's wire format, read strictly: whatever a usual client does not send is "unusual".
//
// Unusual are, besides malformed bytes: field numbers above 15, groups, numbers written longer than
// needed, texts that are not ASCII. Every function says false then, and reads nothing outside its
// bytes whatever they hold. https://protobuf.dev/programming-guides/encoding/
#pragma once
#include <cstdint>
#include <cstring>

namespace sharded_infer {

enum WireType : std::uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

// A part of the message; never owned.
struct Bytes {
  const std::uint8_t* data = nullptr;
  std::int64_t size = 0;
};

inline bool is(Bytes text, const char* other) {
  const auto size = static_cast<std::int64_t>(std::strlen(other));
  return text.size == size && std::memcmp(text.data, other, size) == 0;
}

inline bool is_ascii(Bytes text) {
  std::uint8_t all = 0;
  for (std::int64_t i = 0; i < text.size; ++i) all |= text.data[i];
  return all < 0x80;
}

// Reads one message from its first byte to its last.
class WireReader {
 public:
  explicit WireReader(Bytes bytes) : at_(bytes.data), end_(bytes.data + bytes.size) {}

  bool done() const { return at_ == end_; }
  const std::uint8_t* at() const { return at_; }

  bool read_tag(std::uint32_t& field, std::uint32_t& type) {
    if (at_ == end_ || *at_ >= 0x80) return false;
    field = *at_ >> 3;
    type = *at_ & 7;
    ++at_;
    return field != 0;
  }

  bool read_varint(std::uint64_t& value) {
    if (at_ != end_ && *at_ < 0x80) {
      value = *at_++;
      return true;
    }
    value = 0;
    for (int shift = 0; shift < 70 && at_ != end_; shift += 7) {
      const std::uint64_t byte = *at_++;
      if (shift == 63 && byte > 1) return false;
      value |= (byte & 0x7f) << shift;
      // A last byte of 0 adds nothing: the number could have been shorter.
      if (byte < 0x80) return byte != 0;
    }
    return false;
  }

  bool read_bytes(Bytes& bytes) {
    std::uint64_t size;
    if (!read_varint(size) || size > static_cast<std::uint64_t>(end_ - at_)) return false;
    bytes = {at_, static_cast<std::int64_t>(size)};
    at_ += size;
    return true;
  }

  bool read_fixed64(std::uint64_t& value) {
    if (end_ - at_ < std::int64_t(sizeof value)) return false;
    std::memcpy(&value, at_, sizeof value);
    at_ += sizeof value;
    return true;
  }

  bool skip(std::int64_t size) {
    if (end_ - at_ < size) return false;
    at_ += size;
    return true;
  }

 private:
  const std::uint8_t* at_;
  const std::uint8_t* end_;
};

// Writing ------------------------------------------------------------------------------------

inline int varint_bytes(std::uint64_t number) {
  int bytes = 1;
  while (number >>= 7) ++bytes;
  return bytes;
}

inline std::uint8_t* put_varint(std::uint64_t number, std::uint8_t* to) {
  for (; number >= 0x80; number >>= 7) *to++ = std::uint8_t(number | 0x80);
  *to++ = std::uint8_t(number);
  return to;
}

inline std::uint8_t* put_tag(std::uint32_t field, WireType type, std::uint8_t* to) {
  *to++ = std::uint8_t(field << 3 | type);
  return to;
}

// Of a field of bytes: its tag and its length.
inline std::uint8_t* put_head(std::uint32_t field, std::int64_t bytes, std::uint8_t* to) {
  return put_varint(std::uint64_t(bytes), put_tag(field, kBytes, to));
}

inline std::int64_t head_bytes(std::int64_t bytes) {
  return 1 + varint_bytes(std::uint64_t(bytes));
}

}  // namespace sharded_infer
