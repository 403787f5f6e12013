// Which status an answer has that names none (gRPC: statuscodes.md, http-grpc-status-mapping.md and
// PROTOCOL-HTTP2.md, "Errors").
#pragma once
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include "transport/nghttp2.h"

namespace sharded_infer::client {

enum Code : std::int32_t {
  kOk = 0,
  kCancelled = 1,
  kUnknown = 2,
  kDeadlineExceeded = 4,
  kPermissionDenied = 7,
  kResourceExhausted = 8,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
  kUnauthenticated = 16,
};
constexpr int kCodes = 17;

inline Code code_of_http(int status) {
  switch (status) {
    case 400: return kInternal;
    case 401: return kUnauthenticated;
    case 403: return kPermissionDenied;
    case 404: return kUnimplemented;
    case 429:
    case 502:
    case 503:
    case 504: return kUnavailable;
    default: return kUnknown;
  }
}

inline Code code_of_reset(std::uint32_t error) {
  switch (error) {
    case nghttp2::kRefusedStream: return kUnavailable;
    case nghttp2::kCancel: return kCancelled;
    case nghttp2::kEnhanceYourCalm: return kResourceExhausted;
    case nghttp2::kInadequateSecurity: return kPermissionDenied;
    default: return kInternal;
  }
}

// A header's number; of anything else gRPC's UNKNOWN.
inline int header_number(std::string_view digits) {
  int value = 0;
  if (digits.empty() || digits.size() > 4) return kUnknown;
  for (const char digit : digits) {
    if (digit < '0' || digit > '9') return kUnknown;
    value = 10 * value + (digit - '0');
  }
  return value;
}

// For the words of errors.
inline std::string seconds_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%g s", seconds);
  return text;
}

// The words of a grpc-message. What is no percent-encoding stays as it is.
inline std::string percent_decoded(std::string_view text) {
  const auto digit = [](char of) {
    return of >= '0' && of <= '9'   ? of - '0'
           : of >= 'A' && of <= 'F' ? of - 'A' + 10
           : of >= 'a' && of <= 'f' ? of - 'a' + 10
                                    : -1;
  };
  std::string words;
  words.reserve(text.size());
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '%' && at + 2 < text.size() && digit(text[at + 1]) >= 0 &&
        digit(text[at + 2]) >= 0) {
      words.push_back(char(16 * digit(text[at + 1]) + digit(text[at + 2])));
      at += 2;
    } else {
      words.push_back(text[at]);
    }
  }
  return words;
}

}  // namespace sharded_infer::client
