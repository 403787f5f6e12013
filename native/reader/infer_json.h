// The parts of a predict request in JSON, whose tensors are there or follow in binary, to a
// visitor.
//
// A visitor has `id(Bytes)`, `priority(n)`, `timeout(n)`, `key(Bytes)`, `key_number(n)`,
// `unknown_ids(bool)`, `binary_outputs(bool)`, `output(Bytes name, BinaryOutput, const Span&)`,
// `data(JsonReader&, const Input&)`, which reads an input's elements when its name, datatype and
// shape are known, and `input(const Input&, bytes)`, below 0 where it had `data` or a span; each
// says whether to go on.
#pragma once
#include "header.h"
#include "input.h"
#include "base/json.h"

namespace sharded_infer {

enum class BinaryOutput { kNotSaid, kNo, kYes };

// Whether a key comes for the first time; each has a bit.
inline bool is_first(std::uint32_t& seen, std::uint32_t bit) {
  const bool first = !(seen & bit);
  seen |= bit;
  return first;
}

// A parameter of a tensor's span, whose key has been read.
inline bool read_json_span(JsonReader& reader, Bytes key, Span& span) {
  Parameter parameter;
  parameter.key = key;
  parameter.kind = kString;
  if (reader.read_text(parameter.text)) return span.add(parameter);
  parameter.kind = kInt64;
  std::int64_t number;
  if (!reader.read_number(number)) return false;
  parameter.number = static_cast<std::uint64_t>(number);
  return span.add(parameter);
}

// A name, a datatype, a shape, and one of the parameter `binary_data_size`, parameters of a span,
// and data, in any order.
template <class Visitor>
bool read_json_input(JsonReader& reader, Visitor& visitor) {
  Input input;
  std::int64_t bytes = -1;
  std::uint32_t seen = 0;
  // Where data before the shape is, and what follows it.
  JsonReader data = reader, behind = reader;
  const bool is_usual = reader.read_object([&](Bytes key) {
    if (is(key, "name")) return is_first(seen, 1) && reader.read_text(input.name);
    if (is(key, "datatype")) {
      Bytes datatype;
      if (!is_first(seen, 2) || !reader.read_text(datatype)) return false;
      input.datatype = datatype_of(datatype);
      return input.datatype != kNoDatatype;
    }
    if (is(key, "shape"))
      return is_first(seen, 4) && reader.read_list([&] {
        std::int64_t size;
        return reader.read_number(size) && input.add_size(static_cast<std::uint64_t>(size));
      });
    if (is(key, "data")) {
      if (!is_first(seen, 32)) return false;
      if ((seen & 7) == 7) return visitor.data(reader, input);
      data = reader;
      if (!reader.skip_list()) return false;
      behind = reader;
      return true;
    }
    if (!is(key, "parameters")) return false;
    return is_first(seen, 8) && reader.read_object([&](Bytes parameter) {
      if (!is(parameter, "binary_data_size")) return read_json_span(reader, parameter, input.span);
      return is_first(seen, 16) && reader.read_number(bytes);
    });
  });
  if (!is_usual || (seen & 7) != 7 || input.rank == 0) return false;
  if (((seen & 16) != 0) + ((seen & 32) != 0) + !input.span.is_none() != 1) return false;
  if (!input.span.is_none() && !input.span.is_whole()) return false;
  if (!data.is_at(behind) && !(visitor.data(data, input) && data.is_at(behind))) return false;
  return visitor.input(input, bytes);
}

// A name, and perhaps the parameter `binary_data` or those of a span.
inline bool read_json_output(JsonReader& reader, Bytes& name, BinaryOutput& binary, Span& span) {
  std::uint32_t seen = 0;
  const bool is_usual = reader.read_object([&](Bytes key) {
    if (is(key, "name")) return is_first(seen, 1) && reader.read_text(name);
    if (!is(key, "parameters")) return false;
    return is_first(seen, 2) && reader.read_object([&](Bytes parameter) {
      bool wanted;
      if (!is(parameter, "binary_data")) return read_json_span(reader, parameter, span);
      if (!is_first(seen, 4) || !reader.read_flag(wanted)) return false;
      binary = wanted ? BinaryOutput::kYes : BinaryOutput::kNo;
      return true;
    });
  });
  return is_usual && (seen & 1) && (span.is_none() || span.is_whole());
}

template <class Visitor>
bool read_json_parameters(JsonReader& reader, Visitor& visitor) {
  std::uint32_t seen = 0;
  return reader.read_object([&](Bytes key) {
    std::int64_t number;
    bool flag;
    if (is(key, "binary_data_output"))
      return is_first(seen, 1) && reader.read_flag(flag) && visitor.binary_outputs(flag);
    if (is(key, "priority"))
      return is_first(seen, 2) && reader.read_number(number) && visitor.priority(number);
    if (is(key, "timeout"))
      return is_first(seen, 4) && reader.read_number(number) && visitor.timeout(number);
    if (is(key, "unknown_ids"))
      return is_first(seen, 16) && reader.read_flag(flag) && visitor.unknown_ids(flag);
    if (is(key, "routing_key")) {
      Bytes text;
      if (!is_first(seen, 8)) return false;
      if (reader.read_text(text)) return visitor.key(text);
      return reader.read_number(number) && visitor.key_number(number);
    }
    return false;
  });
}

template <class Visitor>
bool visit_json(Bytes json, Visitor& visitor) {
  JsonReader reader(json);
  std::uint32_t seen = 0;
  const bool is_usual = reader.read_object([&](Bytes key) {
    if (is(key, "id")) {
      Bytes id;
      return is_first(seen, 1) && reader.read_text(id) && visitor.id(id);
    }
    if (is(key, "parameters")) return is_first(seen, 2) && read_json_parameters(reader, visitor);
    if (is(key, "inputs"))
      return is_first(seen, 4) &&
             reader.read_list([&] { return read_json_input(reader, visitor); });
    if (is(key, "outputs"))
      return is_first(seen, 8) && reader.read_list([&] {
        Bytes name;
        BinaryOutput binary = BinaryOutput::kNotSaid;
        Span span;
        return read_json_output(reader, name, binary, span) && visitor.output(name, binary, span);
      });
    return false;
  });
  return is_usual && reader.done();
}

// Fills a header; a visitor needs `data` and `input` beside it.
class JsonHeaderVisitor {
 public:
  JsonHeaderVisitor(Bytes json, JsonHeader& found) : json_(json), found_(found) {}

  bool id(Bytes id) {
    found_.header.id = part(id);
    return true;
  }

  bool priority(std::int64_t priority) {
    found_.header.priority = priority;
    return true;
  }

  bool timeout(std::int64_t timeout_us) {
    found_.header.timeout_us = timeout_us;
    return true;
  }

  bool key(Bytes key) {
    found_.header.key = part(key);
    return true;
  }

  bool key_number(std::int64_t key) {
    found_.header.key_is_number = 1;
    found_.header.key_number = key;
    return true;
  }

  bool unknown_ids(bool wanted) {
    found_.header.reports_unknown = wanted;
    return true;
  }

  bool binary_outputs(bool wanted) {
    found_.binary_default = wanted;
    return true;
  }

  bool output(Bytes name, BinaryOutput binary, const Span& span) {
    std::int64_t& count = found_.header.output_count;
    if (count == kMaxOutputs) return false;
    if (binary != BinaryOutput::kNotSaid) found_.binary_said |= std::int64_t{1} << count;
    if (binary == BinaryOutput::kYes) found_.binary_wanted |= std::int64_t{1} << count;
    return add_output(json_, name, span, found_.header);
  }

 private:
  Text part(Bytes bytes) const { return {bytes.data - json_.data, bytes.size}; }

  Bytes json_;
  JsonHeader& found_;
};

}  // namespace sharded_infer
