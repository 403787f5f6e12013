// See header.h.
#include "header.h"

#include "envelope.h"

namespace sharded_infer {
namespace {

class HeaderVisitor {
 public:
  HeaderVisitor(Bytes message, Header& header) : message_(message), header_(header) {}

  bool text(std::uint32_t field, Bytes bytes) {
    Text& text = field == kName ? header_.name : field == kVersion ? header_.version : header_.id;
    text = part(bytes);
    return true;
  }

  bool parameter(const Parameter& parameter) {
    if (parameter.is("priority")) return number(parameter, seen_priority_, header_.priority);
    if (parameter.is("timeout")) return number(parameter, seen_timeout_, header_.timeout_us);
    // It stands for the version: seldom sent, as the version may be a label itself.
    return !parameter.is("label");
  }

  bool input(Bytes) { return true; }
  bool contents(Bytes) { return true; }

  bool output(Bytes name) {
    if (header_.output_count == kMaxOutputs) return false;
    header_.outputs[header_.output_count++] = part(name);
    return true;
  }

 private:
  // A negative int64 is a number of 2^63 or more here: unusual, as larger uint64 are.
  static bool number(const Parameter& parameter, bool& seen, std::int64_t& value) {
    const bool whole = parameter.kind == kInt64 || parameter.kind == kUint64;
    if (seen || !whole || parameter.number >> 63) return false;
    seen = true;
    value = static_cast<std::int64_t>(parameter.number);
    return true;
  }

  Text part(Bytes bytes) const { return {bytes.data - message_.data, bytes.size}; }

  Bytes message_;
  Header& header_;
  bool seen_priority_ = false;
  bool seen_timeout_ = false;
};

}  // namespace

bool read_header(Bytes message, Header& header) {
  header = Header();
  HeaderVisitor visitor(message, header);
  return visit_request(message, visitor);
}

}  // namespace sharded_infer
