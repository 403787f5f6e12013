// Bytes between a connection's socket and its HTTP/2 session, with or without TLS.
#include "connection.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace sharded_infer::client {

namespace {

constexpr std::size_t kBytesATurn = 2 << 20;
constexpr std::size_t kOutBytes = 128 << 10;
constexpr std::int64_t kMostUnknownBytes = 1 << 20;
constexpr std::size_t kMostWaitingFrames = 4096;
// Of an address beside which there are others.
constexpr double kAttemptSeconds = 0.25;
constexpr std::uint32_t kStreamWindow = 16 << 20;
constexpr std::int32_t kConnectionWindow = 256 << 20;
constexpr std::uint32_t kFrameBytes = 1 << 20;

}  // namespace

Connection::Connection(const Shared& shared, const EndpointSettings& endpoint,
                       std::shared_ptr<Addresses> addresses, double now)
    : shared_(shared),
      endpoint_(endpoint),
      addresses_(std::move(addresses)),
      connect_until_(now + shared.settings.connect_seconds) {
  if (addresses_->is_known()) try_address(now);
}

Connection::~Connection() {
  if (stage_ != Stage::kLost) {
    if (session_ != nullptr) {
      shared_.http2.terminate(session_, nghttp2::kNoError);
      flush();
    }
    lose("closed");
  }
  if (session_ != nullptr) shared_.http2.session_del(session_);
}

void Connection::lose(const std::string& reason) {
  if (stage_ == Stage::kLost) return;
  stage_ = Stage::kLost;
  reason_ = reason;
  if (ssl_ != nullptr) {
    shared_.crypto->clear_errors();
    if (session_ != nullptr) shared_.crypto->shutdown(ssl_);
    shared_.crypto->ssl_free(ssl_);
    ssl_ = nullptr;
  }
  if (descriptor_ >= 0) close(descriptor_);
  descriptor_ = -1;
}

void Connection::try_address(double now) {
  const std::vector<Address>& found = addresses_->found();
  if (found.empty()) return lose(addresses_->error());
  while (next_address_ < found.size()) {
    descriptor_ = found[next_address_++].connect();
    if (descriptor_ < 0) {
      if (next_address_ == found.size()) return lose(std::strerror(errno));
      continue;
    }
    stage_ = Stage::kConnecting;
    attempt_until_ = next_address_ < found.size() ? now + kAttemptSeconds : kNever;
    return;
  }
}

void Connection::address_failed(int error, double now) {
  close(descriptor_);
  descriptor_ = -1;
  if (next_address_ == addresses_->found().size()) return lose(std::strerror(error));
  try_address(now);
}

void Connection::connected(double now) {
  int error = 0;
  socklen_t bytes = sizeof error;
  getsockopt(descriptor_, SOL_SOCKET, SO_ERROR, &error, &bytes);
  if (error != 0) return address_failed(error, now);
  attempt_until_ = kNever;
  if (shared_.tls == nullptr) return open(now);
  ssl_ = shared_.tls->connect(descriptor_, endpoint_.server_name);
  if (ssl_ == nullptr) return lose("TLS: " + shared_.crypto->last_error());
  stage_ = Stage::kShaking;
  shake_hands(now);
}

void Connection::shake_hands(double now) {
  const openssl::Library& crypto = *shared_.crypto;
  crypto.clear_errors();
  const int result = crypto.connect(ssl_);
  if (result == 1) {
    const unsigned char* name = nullptr;
    unsigned bytes = 0;
    crypto.chosen_protocol(ssl_, &name, &bytes);
    if (bytes != 2 || name[0] != 'h' || name[1] != '2')
      return lose("TLS: the server does not speak HTTP/2");
    return open(now);
  }
  const int error = crypto.error(ssl_, result);
  wants_write_ = error == openssl::kWantWrite;
  if (wants_write_ || error == openssl::kWantRead) return;
  const long verified = crypto.verify_result(ssl_);
  if (verified != 0) return lose(std::string("TLS: ") + crypto.verify_text(verified));
  lose("TLS: " + crypto.last_error());
}

void Connection::open(double now) {
  const nghttp2::Library& http2 = shared_.http2;
  if (http2.client_with_options(&session_, shared_.callbacks, this, shared_.options) != 0) {
    session_ = nullptr;
    return lose("no memory is left");
  }
  const nghttp2::Setting settings[] = {
      {nghttp2::kEnablePush, 0},
      {nghttp2::kInitialWindow, kStreamWindow},
      {nghttp2::kMaxFrameSize, kFrameBytes},
      {nghttp2::kMaxHeaderListSize, std::uint32_t(shared_.settings.max_header_bytes)},
  };
  http2.submit_settings(session_, 0, settings, 4);
  http2.set_local_window(session_, 0, 0, kConnectionWindow);
  stage_ = Stage::kOpen;
  wants_write_ = false;
  now_ = now;
}

pollfd Connection::wanted() const {
  switch (stage_) {
    case Stage::kResolving: return {addresses_->descriptor(), POLLIN, 0};
    case Stage::kConnecting: return {descriptor_, POLLOUT, 0};
    case Stage::kShaking: return {descriptor_, short(wants_write_ ? POLLOUT : POLLIN), 0};
    case Stage::kOpen: return {descriptor_, short(wants_write_ ? POLLIN | POLLOUT : POLLIN), 0};
    case Stage::kLost: break;
  }
  return {-1, 0, 0};
}

void Connection::progress(double now) {
  switch (stage_) {
    case Stage::kResolving:
      if (addresses_->is_known()) try_address(now);
      return;
    case Stage::kConnecting: return connected(now);
    case Stage::kShaking: return shake_hands(now);
    case Stage::kOpen: return receive(now);
    case Stage::kLost: return;
  }
}

// Bytes in the shared buffer; 0: none are there now; negative: the connection is lost.
ssize_t Connection::read_some() {
  std::vector<std::uint8_t>& buffer = shared_.buffer;
  if (ssl_ == nullptr) {
    const ssize_t got = recv(descriptor_, buffer.data(), buffer.size(), 0);
    if (got > 0) return got;
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
    lose(got == 0 ? "the peer closed the connection" : std::strerror(errno));
    return -1;
  }
  const openssl::Library& crypto = *shared_.crypto;
  crypto.clear_errors();
  const int got = crypto.read(ssl_, buffer.data(), int(buffer.size()));
  if (got > 0) return got;
  const int error = crypto.error(ssl_, got);
  if (error == openssl::kWantRead || error == openssl::kWantWrite) return 0;
  lose(error == openssl::kTlsFailed ? "TLS: " + crypto.last_error()
                                    : "the peer closed the connection");
  return -1;
}

void Connection::receive(double now) {
  now_ = now;
  has_more_ = false;
  // Other connections have their turns too.
  for (std::size_t left = kBytesATurn; left > 0;) {
    const ssize_t got = read_some();
    if (got <= 0) return;
    left -= std::min(left, std::size_t(got));
    const ssize_t used = shared_.http2.mem_recv(session_, shared_.buffer.data(), std::size_t(got));
    if (used < 0)
      return lose(broken_.empty() ? shared_.http2.error_text(int(used)) : broken_.c_str());
    unknown_bytes_ += got;
    if (unknown_bytes_ > kMostUnknownBytes) return lose("the peer sends too many unknown frames");
    silent_since_ = calls.empty() ? kNever : now;
    ping_at_ = kNever;
    if (ssl_ == nullptr && std::size_t(got) < shared_.buffer.size()) return;
  }
  has_more_ = true;
}

// Bytes that were taken; 0: none now; negative: the connection is lost.
ssize_t Connection::write_some(const char* from, std::size_t bytes) {
  if (ssl_ == nullptr) {
    const ssize_t sent = send(descriptor_, from, bytes, MSG_NOSIGNAL);
    if (sent >= 0) return sent;
    if (errno == EAGAIN || errno == EINTR) return 0;
    lose(std::strerror(errno));
    return -1;
  }
  const openssl::Library& crypto = *shared_.crypto;
  crypto.clear_errors();
  const int sent = crypto.write(ssl_, from, int(bytes));
  if (sent > 0) return sent;
  const int error = crypto.error(ssl_, sent);
  if (error == openssl::kWantRead || error == openssl::kWantWrite) return 0;
  lose(error == openssl::kTlsFailed ? "TLS: " + crypto.last_error()
                                    : "the peer closed the connection");
  return -1;
}

void Connection::flush() {
  const nghttp2::Library& http2 = shared_.http2;
  for (;;) {
    if (written_ == out_.size()) {
      out_.clear();
      written_ = 0;
      const std::uint8_t* part = nullptr;
      ssize_t bytes = 0;
      while (out_.size() < kOutBytes && (bytes = http2.mem_send(session_, &part)) > 0)
        out_.append(reinterpret_cast<const char*>(part), std::size_t(bytes));
      if (bytes < 0) return lose(http2.error_text(int(bytes)));
      if (out_.empty()) break;
    }
    const ssize_t sent = write_some(out_.data() + written_, out_.size() - written_);
    if (sent < 0) return;
    if (sent == 0) {
      wants_write_ = true;
      if (http2.queued_frames(session_) > kMostWaitingFrames + calls.size())
        lose("the peer takes nothing of what it is sent");
      return;
    }
    written_ += std::size_t(sent);
  }
  wants_write_ = false;
  if (!http2.want_read(session_) && !http2.want_write(session_))
    lose(leaves_ ? "the peer ended the connection" : "the peer broke HTTP/2");
}

void Connection::tend(double now) {
  now_ = now;
  if (stage_ == Stage::kLost) return;
  if (stage_ != Stage::kOpen) {
    if (now >= connect_until_)
      return lose("no connection within " + seconds_text(shared_.settings.connect_seconds));
    if (stage_ == Stage::kConnecting && now >= attempt_until_) address_failed(ETIMEDOUT, now);
    return;
  }
  keep_alive(now);
  if (stage_ == Stage::kOpen) flush();
}

void Connection::keep_alive(double now) {
  const Settings& settings = shared_.settings;
  if (ping_at_ == kNever && now >= silent_since_ + settings.keepalive_seconds) {
    ping_at_ = now;
    shared_.http2.submit_ping(session_, 0, nullptr);
  }
  if (now >= ping_at_ + settings.keepalive_timeout_seconds)
    lose("no answer to a PING within " + seconds_text(settings.keepalive_timeout_seconds));
}

double Connection::next_time() const {
  if (stage_ == Stage::kLost || has_more_) return 0.0;
  if (stage_ != Stage::kOpen) return std::min(connect_until_, attempt_until_);
  const Settings& settings = shared_.settings;
  return ping_at_ < kNever ? ping_at_ + settings.keepalive_timeout_seconds
                           : silent_since_ + settings.keepalive_seconds;
}

}  // namespace sharded_infer::client
