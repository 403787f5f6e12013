// The header fields of a request that decide what becomes of it, and the others as the handler
// gets them.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "settings.h"

namespace sharded_infer::transport {

constexpr double kForever = std::numeric_limits<double>::infinity();

// ASCII letters in lower case.
inline std::string lower(std::string_view text) {
  std::string small(text);
  for (char& byte : small)
    if (byte >= 'A' && byte <= 'Z') byte = char(byte | 0x20);
  return small;
}

// Seconds of a grpc-timeout (gRPC over HTTP/2: up to eight digits and a unit); negative:
// unreadable.
inline double timeout_seconds(std::string_view text) {
  if (text.size() < 2 || text.size() > 9) return -1.0;
  double number = 0.0;
  for (const char digit : text.substr(0, text.size() - 1)) {
    if (digit < '0' || digit > '9') return -1.0;
    number = 10.0 * number + (digit - '0');
  }
  switch (text.back()) {
    case 'H': return number * 3600.0;
    case 'M': return number * 60.0;
    case 'S': return number;
    case 'm': return number * 1e-3;
    case 'u': return number * 1e-6;
    case 'n': return number * 1e-9;
    default: return -1.0;
  }
}

// At most 8 digits and a unit, rounded up: the server must not be the first to give up.
inline std::string grpc_timeout(double seconds) {
  const std::pair<double, char> units[] = {{1e6, 'u'}, {1e3, 'm'}, {1.0, 'S'}};
  for (const auto& [scale, unit] : units) {
    const double value = std::max(std::ceil(seconds * scale), 1.0);
    if (value <= 99999999.0) return std::to_string(std::int64_t(value)) + unit;
  }
  return "99999999S";
}

// Timeouts of one class differ by less than a factor of two. To the scheduler, longer ones are as
// long as its patience.
constexpr double kPatience = 1.0;
constexpr int kTimeoutClasses = 12;
inline int timeout_class(double seconds) {
  const int last = kTimeoutClasses - 1;
  return std::max(std::ilogb(std::min(seconds, kPatience)), -last) + last;
}

// Calls `visit(name, value)` for each pair in the form that `RequestHead::keep` writes.
template <class Visitor>
void each_pair(std::string_view pairs, Visitor visit) {
  std::uint32_t lengths[2];
  while (pairs.size() >= sizeof lengths) {
    std::memcpy(lengths, pairs.data(), sizeof lengths);
    pairs.remove_prefix(sizeof lengths);
    visit(pairs.substr(0, lengths[0]), pairs.substr(lengths[0], lengths[1]));
    pairs.remove_prefix(std::size_t(lengths[0]) + lengths[1]);
  }
}

// Whether a header is among such pairs.
inline bool has_header(std::string_view pairs, std::string_view wanted) {
  bool found = false;
  each_pair(pairs, [&](std::string_view name, std::string_view) { found |= name == wanted; });
  return found;
}

struct RequestHead {
  std::int32_t method = -1;  // position in the settings; -1: unknown
  bool is_post = false;
  bool is_grpc = false;
  bool timeout_is_good = true;
  double timeout = kForever;
  Encoding encoding = kIdentity;
  std::size_t bytes = 0;  // as HTTP/2 counts a list of headers
  std::string path;
  std::string authorization;
  bool has_authorization = false;
  bool ends_at_error = false;  // the first refused message of a stream of calls ends it
  std::string others;          // for each: 4 bytes of name's length, 4 of value's, name, value

  void clear() {
    method = -1;
    is_post = is_grpc = has_authorization = ends_at_error = false;
    timeout_is_good = true;
    timeout = kForever;
    encoding = kIdentity;
    bytes = 0;
    path.clear();
    authorization.clear();
    others.clear();
  }

  void add(std::string_view name, std::string_view value) {
    if (name == ":path") {
      path.assign(value);
    } else if (name == ":method") {
      is_post = value == "POST";
    } else if (name == "content-type") {
      // application/grpc, also +proto and the like, and parameters.
      is_grpc = value.substr(0, 16) == "application/grpc" &&
                (value.size() == 16 || value[16] == '+' || value[16] == ';');
    } else if (name == "grpc-timeout") {
      timeout = timeout_seconds(value);
      timeout_is_good = timeout >= 0.0;
    } else if (name == "grpc-encoding") {
      encoding = value == "identity"  ? kIdentity
                 : value == "gzip"    ? kGzip
                 : value == "deflate" ? kDeflate
                                      : kOther;
    } else if (name[0] != ':' && name != "te" && name != "grpc-accept-encoding") {
      if (name == "authorization") {
        has_authorization = true;
        authorization.assign(value);
      }
      // Triton's option.
      if (name == "triton_grpc_error") ends_at_error = value == "true";
      keep(name, value);
    }
  }

  void keep(std::string_view name, std::string_view value) {
    const std::uint32_t lengths[2] = {std::uint32_t(name.size()), std::uint32_t(value.size())};
    others.append(reinterpret_cast<const char*>(lengths), sizeof lengths);
    others.append(name).append(value);
  }
};

// A number with its noun, for messages to clients.
inline std::string plural(std::int64_t count, const char* noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

// A grpc-message: percent-encoded but for printable ASCII (gRPC over HTTP/2, responses).
inline std::string percent_encoded(std::string_view words) {
  static const char digits[] = "0123456789ABCDEF";
  std::string encoded;
  encoded.reserve(words.size());
  for (const unsigned char byte : words) {
    if (byte >= 0x20 && byte <= 0x7e && byte != '%') {
      encoded.push_back(char(byte));
    } else {
      encoded.push_back('%');
      encoded.push_back(digits[byte >> 4]);
      encoded.push_back(digits[byte & 15]);
    }
  }
  return encoded;
}

}  // namespace sharded_infer::transport
