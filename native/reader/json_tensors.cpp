// See json_tensors.h.
#include "json_tensors.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "infer_json.h"

namespace sharded_infer {
namespace {

// As MOST_VALUES and MOST_COLLECTIONS of json_reader.py.
constexpr std::int64_t kMostCommas = 1 << 20, kMostBrackets = 1 << 17;

bool is_small(Bytes json) {
  // A shorter text cannot exceed the limits.
  if (json.size <= kMostBrackets) return true;
  const std::uint8_t* end = json.data + json.size;
  const auto is_bracket = [](std::uint8_t letter) { return letter == '[' || letter == '{'; };
  return std::count_if(json.data, end, is_bracket) <= kMostBrackets &&
         std::count(json.data, end, ',') <= kMostCommas;
}

template <class Number>
bool parse(Bytes text, Number& number) {
  const char* begin = reinterpret_cast<const char*>(text.data);
  const auto parsed = std::from_chars(begin, begin + text.size, number);
  return parsed.ec == std::errc() && parsed.ptr == begin + text.size;
}

}  // namespace

class JsonTensorVisitor : public JsonHeaderVisitor {
 public:
  JsonTensorVisitor(Bytes json, JsonHeader& header, JsonTensors& found)
      : JsonHeaderVisitor(json, header), found_(found) {}

  bool data(JsonReader& reader, const Input& input) {
    begin_ = found_.elements_.size();
    std::int64_t rows = 0, count = 0;
    const bool in_rows = input.rank == 2 && starts_with_list(reader);
    const bool is_usual = reader.read_list([&] {
      if (!in_rows) return ++count <= input.elements() && element(reader, input.datatype);
      std::int64_t columns = 0;
      return ++rows <= input.sizes[0] && reader.read_list([&] {
        return ++columns <= input.sizes[1] && element(reader, input.datatype);
      }) && columns == input.sizes[1];
    });
    return is_usual && (in_rows ? rows == input.sizes[0] : count == input.elements());
  }

  bool input(const Input& input, std::int64_t bytes) {
    if (bytes >= 0) return false;
    const bool is_shared = !input.span.is_none();
    const auto size = is_shared ? 0 : std::int64_t(found_.elements_.size() - begin_);
    found_.spans_.push_back(input.span);
    // Where the elements are is known when no more come.
    found_.tensors_.push_back({input.name.data,
                               input.name.size,
                               nullptr,
                               size,
                               Datatype(input.datatype),
                               input.rank,
                               {input.sizes[0], input.sizes[1], input.sizes[2]}});
    return true;
  }

 private:
  static bool starts_with_list(JsonReader reader) {
    return reader.take('[') && reader.next_is('[');
  }

  template <class Number>
  bool add(Number number) {
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(&number);
    found_.elements_.insert(found_.elements_.end(), bytes, bytes + sizeof number);
    return true;
  }

  bool element(JsonReader& reader, std::int32_t datatype) {
    Bytes text;
    if (datatype == kBytesType) {
      if (!reader.read_text(text)) return false;
      add(std::uint32_t(text.size));
      found_.elements_.insert(found_.elements_.end(), text.data, text.data + text.size);
      return true;
    }
    bool whole;
    if (!reader.read_number_text(text, whole)) return false;
    if (datatype == kFp32Type) {
      double number;
      if (!parse(text, number)) return false;
      // A whole -0 is 0.
      const auto rounded = float(whole && number == 0.0 ? 0.0 : number);
      return std::isfinite(rounded) && add(rounded);
    }
    if (datatype == kInt32Type) {
      std::int32_t number;
      return whole && parse(text, number) && add(number);
    }
    std::int64_t number;
    return whole && parse(text, number) && add(number);
  }

  JsonTensors& found_;
  std::size_t begin_ = 0;
};

bool JsonTensors::read(Bytes json, JsonHeader& header) {
  tensors_.clear();
  spans_.clear();
  elements_.clear();
  clear(header);
  JsonTensorVisitor visitor(json, header, *this);
  if (!is_small(json) || !visit_json(json, visitor)) return false;
  const std::uint8_t* at = elements_.data();
  for (NamedTensor& tensor : tensors_) {
    tensor.data = at;
    at += tensor.data_bytes;
  }
  return true;
}

}  // namespace sharded_infer
