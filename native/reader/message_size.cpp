// See message_size.h.
#include "message_size.h"

#include <algorithm>

namespace sharded_infer {
namespace {

bool read_varint(Bytes& bytes, std::uint64_t& value) {
  value = 0;
  const std::int64_t longest = std::min<std::int64_t>(bytes.size, 10);
  for (std::int64_t at = 0; at < longest; ++at) {
    const std::uint64_t byte = bytes.data[at];
    value |= (byte & 0x7f) << (7 * at);
    if (byte < 0x80) {
      bytes = {bytes.data + at + 1, bytes.size - at - 1};
      return true;
    }
  }
  return false;
}

class Counter {
 public:
  explicit Counter(const MessageLimits& limits) : limits_(limits) {}

  Excess count(std::int32_t message, Bytes bytes) {
    std::uint64_t tag, value;
    while (bytes.size > 0 && read_varint(bytes, tag)) {
      std::uint64_t size = 0;
      const std::uint64_t type = tag & 7;
      if (type == kBytes && !read_varint(bytes, size)) break;
      if (type == kVarint && !read_varint(bytes, value)) break;
      if (type == kFixed64) size = 8;
      if (type == kFixed32) size = 4;
      if (type > kFixed32 || size > static_cast<std::uint64_t>(bytes.size)) break;
      const Bytes contents{bytes.data, static_cast<std::int64_t>(size)};
      bytes = {bytes.data + size, bytes.size - contents.size};
      if (++fields_ > limits_.fields) return kTooManyFields;
      if (type == kBytes) {
        if (const Excess excess = count_contents(message, tag >> 3, contents)) return excess;
      }
    }
    return kWithinLimits;
  }

 private:
  Excess count_contents(std::int32_t message, std::uint64_t field, Bytes contents) {
    for (std::int64_t at = 0; at < limits_.count; ++at) {
      const FieldRule& rule = limits_.rules[at];
      if (rule.message != message || static_cast<std::uint64_t>(rule.field) != field) continue;
      if (rule.holds > 0) return count(rule.holds, contents);
      numbers_ += rule.holds == 0 ? std::count_if(contents.data, contents.data + contents.size,
                                                  [](std::uint8_t byte) { return byte < 0x80; })
                                  : contents.size / -rule.holds;
      return numbers_ > limits_.numbers ? kTooManyNumbers : kWithinLimits;
    }
    return kWithinLimits;
  }

  const MessageLimits& limits_;
  std::int64_t fields_ = 0;
  std::int64_t numbers_ = 0;
};

}  // namespace

Excess check_size(const MessageLimits& limits, Bytes message) {
  return Counter(limits).count(0, message);
}

}  // namespace sharded_infer
