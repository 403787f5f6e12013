// See header.h.
#include "header.h"

#include "envelope.h"
#include "infer_json.h"

namespace sharded_infer {
namespace {

// As many as a message may have fields (message_size.py). The rest of more is not walked through.
constexpr std::int64_t kMostParts = 1 << 17;

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
    if (parameter.is("routing_key")) return key(parameter);
    if (parameter.is("unknown_ids")) return flag(parameter);
    // `label` stands for the version: seldom sent, as the version may be a label itself.
    return !parameter.is("label");
  }

  bool input(Bytes) { return ++parts_ <= kMostParts; }
  bool contents(Bytes) { return ++parts_ <= kMostParts; }

  bool output(Bytes name, const Span& span) { return add_output(message_, name, span, header_); }

 private:
  bool key(const Parameter& parameter) {
    if (seen_key_ || (parameter.kind != kString && parameter.kind != kInt64)) return false;
    seen_key_ = true;
    header_.key_is_number = parameter.kind == kInt64;
    if (header_.key_is_number)
      header_.key_number = static_cast<std::int64_t>(parameter.number);
    else
      header_.key = part(parameter.text);
    return true;
  }

  bool flag(const Parameter& parameter) {
    if (seen_flag_ || parameter.kind != kBool) return false;
    seen_flag_ = true;
    header_.reports_unknown = parameter.number != 0;
    return true;
  }

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
  std::int64_t parts_ = 0;
  bool seen_priority_ = false;
  bool seen_timeout_ = false;
  bool seen_key_ = false;
  bool seen_flag_ = false;
};

class BinaryHeaderVisitor : public JsonHeaderVisitor {
 public:
  using JsonHeaderVisitor::JsonHeaderVisitor;
  bool input(const Input&, std::int64_t) { return true; }
  bool data(JsonReader&, const Input&) { return false; }
};

}  // namespace

bool add_output(Bytes text, Bytes name, const Span& span, Header& header) {
  const std::int64_t count = header.output_count;
  if (count == kMaxOutputs) return false;
  OutputPlace& place = header.places[count];
  place = OutputPlace();
  if (!span.is_none()) {
    const auto* begin = reinterpret_cast<const char*>(text.data);
    for (std::int64_t at = 0; at < count; ++at) {
      const Text& other = header.outputs[at];
      if (header.places[at].region.size > 0 && other.size == name.size &&
          std::memcmp(begin + other.start, name.data, std::size_t(name.size)) == 0)
        return false;
    }
    place = {{span.region.data - text.data, span.region.size}, span.begin(), span.bytes};
  }
  header.outputs[count] = {name.data - text.data, name.size};
  ++header.output_count;
  return true;
}

bool read_json_header(Bytes json, JsonHeader& header) {
  clear(header);
  BinaryHeaderVisitor visitor(json, header);
  return visit_json(json, visitor);
}

bool read_header(Bytes message, Header& header) {
  clear(header);
  HeaderVisitor visitor(message, header);
  return visit_request(message, visitor);
}

}  // namespace sharded_infer
