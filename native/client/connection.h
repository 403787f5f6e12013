// One connection to an endpoint, from its first address to its end, and the calls on it.
//
// It acts when it is told to (begin, abandon, receive, tend, flush) and keeps what became of its
// calls; its endpoint decides what follows.
#pragma once
#include <poll.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "transport/nghttp2.h"
#include "transport/openssl.h"
#include "transport/token_bucket.h"
#include "addresses.h"
#include "calls.h"
#include "abi/client.h"
#include "tls.h"

namespace sharded_infer::client {

constexpr double kNever = std::numeric_limits<double>::infinity();

// What all connections of a client use.
struct Shared {
  const Settings& settings;
  const nghttp2::Library& http2;
  nghttp2::Callbacks* callbacks;
  nghttp2::Options* options;
  const openssl::Library* crypto;  // null: no TLS
  Tls* tls;
  Calls& calls;
  std::vector<std::uint8_t>& buffer;
};

class Connection {
 public:
  Connection(const Shared& shared, const EndpointSettings& endpoint,
             std::shared_ptr<Addresses> addresses, double now);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  bool is_open() const { return stage_ == Stage::kOpen; }
  bool is_lost() const { return stage_ == Stage::kLost; }
  bool was_open() const { return session_ != nullptr; }
  bool is_leaving() const { return leaves_; }  // the peer takes no more calls on it
  bool has_more() const { return has_more_; }
  bool has_answered() const { return has_answered_; }  // at least one call
  const std::string& reason() const { return reason_; }

  void begin(Call* call, double now);
  // Its answer is not wanted any more.
  void abandon(Call* call);
  pollfd wanted() const;
  // Something has come for `wanted`.
  void progress(double now);
  // Gives up what lasts too long, and writes what there is.
  void tend(double now);
  // When to tend it though nothing comes.
  double next_time() const;

  std::vector<Call*> calls;     // in flight
  std::vector<Call*> returned;  // the peer says that it has not processed them

 private:
  friend struct Callbacks;
  enum class Stage { kResolving, kConnecting, kShaking, kOpen, kLost };

  void lose(const std::string& reason);

  // connection.cpp
  void try_address(double now);
  void address_failed(int error, double now);
  void connected(double now);
  void shake_hands(double now);
  void open(double now);
  void receive(double now);
  void flush();
  ssize_t read_some();
  ssize_t write_some(const char* from, std::size_t bytes);
  void keep_alive(double now);

  // session.cpp
  Call* find(std::int32_t stream);
  void detach(Call* call);
  void reset(std::int32_t stream);
  void answered(Call* call, std::uint32_t error);
  void refuse_answer(Call* call, Code code, const std::string& words);
  void take(Call* call, const std::uint8_t* data, std::size_t bytes);
  void said_goaway(std::int32_t last_stream);

  const Shared& shared_;
  const EndpointSettings& endpoint_;
  std::shared_ptr<Addresses> addresses_;
  std::size_t next_address_ = 0;
  Stage stage_ = Stage::kResolving;
  int descriptor_ = -1;
  openssl::Ssl* ssl_ = nullptr;
  nghttp2::Session* session_ = nullptr;
  std::string reason_;
  std::string broken_;  // what the peer did, if it did what ends the connection
  bool wants_write_ = false;
  bool leaves_ = false;
  bool has_answered_ = false;
  bool has_more_ = false;  // that poll does not tell of
  double connect_until_, attempt_until_ = kNever;
  double silent_since_ = kNever;  // calls wait, and nothing has come from then on
  double ping_at_ = kNever;
  double now_ = 0.0;
  std::int64_t window_updates_ = 0;  // that what was sent allows
  std::int64_t data_frames_ = 0;     // that what came allows
  std::int64_t unknown_bytes_ = 0;   // of frames that nghttp2 ignores, since the last answer
  transport::TokenBucket useless_frames_{1000.0, 10000.0};
  std::string out_;
  std::size_t written_ = 0;
  std::vector<nghttp2::Header> headers_;
};

}  // namespace sharded_infer::client
