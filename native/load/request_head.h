// The headers of every call.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "transport/nghttp2.h"
#include "transport/request_head.h"

namespace sharded_infer::load {

// HPACK sends what all calls share as one byte each from the second call on.
class RequestHead {
 public:
  // Without authorization where it is empty.
  RequestHead(std::string authority, std::string path, std::string user_agent,
              std::string authorization)
      : authority_(std::move(authority)),
        path_(std::move(path)),
        agent_(std::move(user_agent)),
        authorization_(std::move(authorization)) {
    add(":method", "POST");
    add(":scheme", "http");
    add(":path", path_);
    add(":authority", authority_);
    add("content-type", "application/grpc");
    add("te", "trailers");
    add("user-agent", agent_);
    if (!authorization_.empty()) add("authorization", authorization_);
    shared_ = headers_.size();
  }
  RequestHead(const RequestHead&) = delete;
  RequestHead& operator=(const RequestHead&) = delete;

  // With what is left of a deadline; infinity for none. Valid until the next call of this.
  const std::vector<nghttp2::Header>& headers(double seconds_left) {
    headers_.resize(shared_);
    if (std::isfinite(seconds_left)) {
      timeout_ = transport::grpc_timeout(seconds_left);
      add("grpc-timeout", timeout_);
      // Every call's differs: copied since it is read later, and kept out of HPACK's table.
      headers_.back().flags = nghttp2::kNoCopyName | nghttp2::kNoIndex;
    }
    return headers_;
  }

 private:
  void add(std::string_view name, std::string_view value) {
    headers_.push_back({reinterpret_cast<const std::uint8_t*>(name.data()),
                        reinterpret_cast<const std::uint8_t*>(value.data()), name.size(),
                        value.size(), nghttp2::kNoCopyName | nghttp2::kNoCopyValue});
  }

  std::string authority_, path_, agent_, authorization_, timeout_;
  std::vector<nghttp2::Header> headers_;
  std::size_t shared_ = 0;  // by all calls; what comes after them is a call's own
};

}  // namespace sharded_infer::load
