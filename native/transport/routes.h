// Routing of HTTP requests by method and path.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "settings.h"

namespace sharded_infer::transport {

class Routes {
 public:
  Routes(const Route* routes, std::int32_t count) {
    for (std::int32_t at = 0; at < count; ++at)
      routes_.push_back({routes[at].verb, split(routes[at].path)});
  }

  // The position of the first route that fits, or -1. The path is as it came, without its query.
  std::int32_t find(std::string_view verb, std::string_view path) const {
    const std::vector<std::string> segments = split(path);
    for (std::size_t at = 0; at < routes_.size(); ++at)
      if (routes_[at].fits(verb, segments)) return std::int32_t(at);
    return -1;
  }

 private:
  struct Pattern {
    std::string verb;
    std::vector<std::string> segments;

    bool fits(std::string_view asked, const std::vector<std::string>& found) const {
      if (verb != "*" && verb != asked && !(verb == "GET" && asked == "HEAD")) return false;
      for (std::size_t at = 0; at < segments.size(); ++at) {
        if (segments[at] == "**") return true;
        if (at >= found.size() || (segments[at] != "{}" && segments[at] != found[at])) return false;
      }
      return segments.size() == found.size();
    }
  };

  // The segments between slashes, decoded (RFC 3986, section 2.1). The first is before the first
  // slash.
  static std::vector<std::string> split(std::string_view path) {
    std::vector<std::string> segments(1);
    for (std::size_t at = 0; at < path.size(); ++at) {
      const bool has_digits = path[at] == '%' && at + 2 < path.size();
      const int high = has_digits ? digit(path[at + 1]) : -1;
      const int low = has_digits ? digit(path[at + 2]) : -1;
      if (path[at] == '/') {
        segments.emplace_back();
      } else if (high >= 0 && low >= 0) {
        segments.back().push_back(char(high << 4 | low));
        at += 2;
      } else {
        segments.back().push_back(path[at]);
      }
    }
    return segments;
  }
  static int digit(char byte) {
    if (byte >= '0' && byte <= '9') return byte - '0';
    const char lower = char(byte | 0x20);
    return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
  }

  std::vector<Pattern> routes_;
};

}  // namespace sharded_infer::transport
