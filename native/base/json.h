// JSON as clients' libraries write it, read strictly: all else is "unusual", as in wire.h.
//
// Unusual are, besides what is no JSON: escapes and texts that are not ASCII, null, and numbers but
// elements of tensors that are not whole, negative or of more than 18 digits.
// https://www.rfc-editor.org/rfc/rfc8259
#pragma once
#include "wire.h"

#include <cstring>

namespace sharded_infer {

class JsonReader {
 public:
  explicit JsonReader(Bytes text) : at_(text.data), end_(text.data + text.size) {}

  bool done() {
    skip_space();
    return at_ == end_;
  }

  bool take(char expected) {
    skip_space();
    if (at_ == end_ || *at_ != static_cast<std::uint8_t>(expected)) return false;
    ++at_;
    return true;
  }

  bool read_text(Bytes& text) {
    if (!take('"')) return false;
    const std::uint8_t* start = at_;
    for (; at_ != end_; ++at_) {
      if (*at_ == '"') {
        text = {start, at_ - start};
        ++at_;
        return true;
      }
      if (*at_ < 0x20 || *at_ >= 0x80 || *at_ == '\\') return false;
    }
    return false;
  }

  bool read_number(std::int64_t& number) {
    skip_space();
    const std::uint8_t* start = at_;
    number = 0;
    for (; at_ != end_ && *at_ >= '0' && *at_ <= '9'; ++at_) {
      if (at_ - start == 18) return false;
      number = 10 * number + (*at_ - '0');
    }
    // A zero begins no longer number; what follows a number is looked at by who asked for it.
    return at_ != start && (*start != '0' || at_ - start == 1);
  }

  // The text of any number, and whether it has neither a fraction nor an exponent.
  bool read_number_text(Bytes& text, bool& whole) {
    skip_space();
    const std::uint8_t* start = at_;
    if (at_ != end_ && *at_ == '-') ++at_;
    const std::uint8_t* digits = at_;
    if (!skip_digits() || (*digits == '0' && at_ - digits > 1)) return false;
    whole = true;
    if (at_ != end_ && *at_ == '.') {
      ++at_;
      whole = false;
      if (!skip_digits()) return false;
    }
    if (at_ != end_ && (*at_ | 0x20) == 'e') {
      ++at_;
      whole = false;
      if (at_ != end_ && (*at_ == '+' || *at_ == '-')) ++at_;
      if (!skip_digits()) return false;
    }
    text = {start, at_ - start};
    return true;
  }

  // Passes a list over, whose lists and objects are closed; its elements may be anything.
  bool skip_list() {
    std::int64_t open = 0;
    do {
      skip_space();
      if (at_ == end_) return false;
      Bytes text;
      if (*at_ == '"') {
        if (!read_text(text)) return false;
      } else {
        open += (*at_ == '[' || *at_ == '{') - (*at_ == ']' || *at_ == '}');
        ++at_;
      }
    } while (open > 0);
    return open == 0;
  }

  bool is_at(const JsonReader& other) const { return at_ == other.at_; }

  bool next_is(char expected) {
    skip_space();
    return at_ != end_ && *at_ == static_cast<std::uint8_t>(expected);
  }

  bool read_flag(bool& flag) {
    skip_space();
    flag = take_word("true");
    return flag || take_word("false");
  }

  // `member(key)` reads the value of each.
  template <class Member>
  bool read_object(Member member) {
    if (!take('{')) return false;
    if (take('}')) return true;
    do {
      Bytes key;
      if (!read_text(key) || !take(':') || !member(key)) return false;
    } while (take(','));
    return take('}');
  }

  // `element()` reads each.
  template <class Element>
  bool read_list(Element element) {
    if (!take('[')) return false;
    if (take(']')) return true;
    do {
      if (!element()) return false;
    } while (take(','));
    return take(']');
  }

 private:
  bool skip_digits() {
    const std::uint8_t* start = at_;
    while (at_ != end_ && *at_ >= '0' && *at_ <= '9') ++at_;
    return at_ != start;
  }

  void skip_space() {
    while (at_ != end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\r' || *at_ == '\t')) ++at_;
  }

  bool take_word(const char* word) {
    const auto size = static_cast<std::int64_t>(std::strlen(word));
    if (end_ - at_ < size || std::memcmp(at_, word, size) != 0) return false;
    at_ += size;
    return true;
  }

  const std::uint8_t* at_;
  const std::uint8_t* end_;
};

}  // namespace sharded_infer
