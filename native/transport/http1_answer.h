// The head of an HTTP/1.1 answer, and an error as the protocol's JSON.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <string>
#include <string_view>

#include "call.h"

namespace sharded_infer::transport {

// The line of a status that the transport itself answers with: its number and its phrase.
inline const char* http_status(std::int32_t number) {
  switch (number) {
    case 400: return "400 Bad Request";
    case 401: return "401 Unauthorized";
    case 403: return "403 Forbidden";
    case 404: return "404 Not Found";
    case 408: return "408 Request Timeout";
    case 429: return "429 Too Many Requests";
    case 431: return "431 Request Header Fields Too Large";
    case 501: return "501 Not Implemented";
    case 503: return "503 Service Unavailable";
    case 504: return "504 Gateway Timeout";
    default: return "500 Internal Server Error";
  }
}

// HTTP's status of gRPC's codes: `StatusCode` of serving/status.py.
inline std::int32_t http_status_of(std::int32_t code) {
  switch (code) {
    case 3: return 400;
    case 4: return 504;
    case 5: return 404;
    case 7: return 403;
    case 8: return 429;
    case 12: return 501;
    case 14: return 503;
    case 16: return 401;
    default: return 500;
  }
}

// IMF-fixdate of RFC 9110, section 5.6.7; made once a second.
inline const std::string& http_date() {
  thread_local std::time_t second = 0;
  thread_local std::string text;
  const std::time_t now = std::time(nullptr);
  if (now != second) {
    second = now;
    std::tm parts{};
    gmtime_r(&now, &parts);
    char written[64];
    // The "C" locale's names, which no locale of the process changes.
    static const char* const days[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
    static const char* const months[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                         "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
    std::snprintf(written, sizeof written, "%s, %02d %s %04d %02d:%02d:%02d GMT",
                  days[parts.tm_wday], parts.tm_mday, months[parts.tm_mon], parts.tm_year + 1900,
                  parts.tm_hour, parts.tm_min, parts.tm_sec);
    text = written;
  }
  return text;
}

// A JSON string's content (RFC 8259, section 7).
inline std::string json_escaped(std::string_view words) {
  std::string escaped;
  for (const char byte : words) {
    if (byte == '"' || byte == '\\') {
      escaped.push_back('\\');
      escaped.push_back(byte);
    } else if (static_cast<unsigned char>(byte) < 0x20) {
      char code[8];
      std::snprintf(code, sizeof code, "\\u%04x", unsigned(byte));
      escaped += code;
    } else {
      escaped.push_back(byte);
    }
  }
  return escaped;
}

// The head of an answer. `lines` are its status and its headers, each with its line break.
inline std::string http_head(std::string_view lines, bool closes) {
  const std::size_t end = lines.find('\n') + 1;
  std::string head = "HTTP/1.1 ";
  head.append(lines.substr(0, end)).append("date: ").append(http_date()).append("\r\n");
  head.append(lines.substr(end)).append(closes ? "connection: close\r\n\r\n" : "\r\n");
  return head;
}

// A call's ending as an answer, where it has no other.
struct ErrorAnswer {
  explicit ErrorAnswer(const Ending& ending) : body("{\"error\":\"") {
    const std::int32_t status =
        ending.http_status != 0 ? ending.http_status : http_status_of(ending.code);
    body.append(json_escaped(ending.words)).append("\"}");
    lines.append(http_status(status)).append("\r\n");
    // It counts whole seconds.
    if (ending.retry_seconds >= 0.0)
      lines +=
          "Retry-After: " +
          std::to_string(std::max(std::int64_t(1), std::int64_t(std::ceil(ending.retry_seconds)))) +
          "\r\n";
    if (status == 401) lines += "WWW-Authenticate: Bearer\r\n";
    lines +=
        "content-type: application/json\r\ncontent-length: " + std::to_string(body.size()) + "\r\n";
  }
  std::string lines, body;
};

}  // namespace sharded_infer::transport
