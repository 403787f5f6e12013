// A connection that speaks HTTP/2, by libnghttp2, with gRPC's calls as its streams.
#pragma once
#include <cstdint>
#include <string>

#include "nghttp2.h"
#include "session.h"
#include "token_bucket.h"

namespace sharded_infer::transport {

struct Connection;
class Server;

// What the sessions of a server have in common.
class Http2 {
 public:
  // Throws std::runtime_error where libnghttp2 is missing.
  Http2();
  ~Http2();
  Http2(const Http2&) = delete;
  Http2& operator=(const Http2&) = delete;

  const nghttp2::Library& library() const { return library_; }

 private:
  friend class Http2Session;
  nghttp2::Library library_;
  nghttp2::Callbacks* callbacks_ = nullptr;
  nghttp2::Options* options_ = nullptr;
};

class Http2Session final : public Session {
 public:
  Http2Session(const Http2& shared, Connection* connection);
  ~Http2Session() override;

  bool read(const std::uint8_t* data, std::size_t bytes) override;
  void write(std::string* out, std::size_t most) override;
  bool is_flooded() const override;
  bool is_over() const override;
  void send(Call* call) override;
  void consumed(Call* call, std::size_t bytes) override;
  void forget(Call* call) override;
  void look_after() override;
  void expel(bool calm, const char* words) override;

 private:
  friend struct Http2Callbacks;

  Call* call_of(std::int32_t stream) const;
  void headers_came(Call* call);
  void refuse_request(Call* call, const char* status);
  void submit_trailers(Call* call);
  void look_after_messages();
  void keep_alive();
  void leave();
  void client_pinged();
  void client_reset(const Call* call);
  void announce_window(std::uint32_t bytes);
  void window_acknowledged();
  void widen(const Call* call);
  void count_reset();
  void count_empty_frame();

  const nghttp2::Library& library_;
  Connection* const connection_;
  Server* const server_;
  nghttp2::Session* session_ = nullptr;

  bool said_shutdown_ = false, said_goaway_ = false;
  bool pinged_ = false;
  double ping_at_ = 0.0;
  double goaway_at_ = 0.0;
  double last_client_ping_ = -1e9;
  int ping_strikes_ = 0;
  std::uint32_t announced_window_ = 0;  // of new streams
  bool settings_acknowledged_ = false;  // the latest
  double refused_at_ = 0.0;             // when a call was last refused on its headers
  std::int64_t window_updates_ = 0;     // that answers allow: for the call and for the connection
  // A reset costs the client nothing and the server work; so do frames that carry nothing.
  TokenBucket resets_{33.0, 200.0};
  TokenBucket empty_frames_{1000.0, 5000.0};
};

}  // namespace sharded_infer::transport
