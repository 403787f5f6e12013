// Unary gRPC calls to several endpoints at once, by the thread that waits for them.
//
// One thread at a time uses it. Calls are numbered from 0 in a round; `clear` ends the round.
#pragma once
#include <poll.h>

#include <memory>
#include <vector>

#include "calls.h"
#include "endpoint.h"
#include "abi/client.h"

namespace sharded_infer::client {

class Client {
 public:
  // Throws std::runtime_error where a library or a file cannot be used. The settings and their
  // strings must live as long as this.
  explicit Client(const Settings& settings);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // Adds calls and writes what the sockets take.
  void start(const Outgoing* calls, std::int32_t count);
  // Until a call ends that the caller has not been told of, or all have, or the time is over.
  // Returns how many numbers of ended ones it has written.
  std::int32_t wait(double seconds, bool all, std::int32_t* ended, std::int32_t most);
  void cancel(std::int32_t number);
  // The message goes to the caller, who gives it back.
  Ended result(std::int32_t number);
  void give_back(std::uint8_t* message) { calls_.buffers.give_back(message); }
  // Cancels what has not ended, and forgets all.
  void clear();
  std::int32_t open() const { return calls_.open(); }

 private:
  void poll(double seconds);
  void tend(double now);
  double next_time() const;
  void end(Call* call, Code code, const std::string& words);

  const Settings settings_;
  const nghttp2::Library http2_;
  std::unique_ptr<openssl::Library> crypto_;
  std::unique_ptr<Tls> tls_;
  nghttp2::Callbacks* callbacks_ = nullptr;
  nghttp2::Options* options_ = nullptr;
  Calls calls_;
  std::vector<std::uint8_t> buffer_;
  std::unique_ptr<Shared> shared_;
  std::vector<std::unique_ptr<Endpoint>> endpoints_;
  std::vector<pollfd> polled_;
  std::vector<Connection*> polled_connections_;
};

}  // namespace sharded_infer::client
