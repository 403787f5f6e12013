// One HTTP/2 connection without TLS: a socket, libnghttp2's session over it, and the calls on it.
//
// It acts when told to (send, cancel, receive, flush), and keeps what ended for its owner.
#pragma once
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "answer.h"
#include "transport/nghttp2.h"
#include "peer.h"

namespace sharded_infer::load {

class Connection;

// A call on a connection. It stays until HTTP/2's stream has ended, even if nobody waits any more.
struct Stream {
  std::int64_t call = -1;  // none: it was given up
  Connection* connection = nullptr;
  std::int32_t id = 0;
  std::int32_t slot = 0;  // its place in its owner's pool
  const std::uint8_t* unsent = nullptr;
  std::size_t unsent_bytes = 0;
  Answer answer;
};

struct EndedStream {
  Stream* stream;
  std::uint32_t error;  // of HTTP/2
};

class Connection {
 public:
  enum class State {
    kConnecting,  // until the server's settings came
    kReady,
    kDraining,  // the server said GOAWAY: what it took it finishes, and nothing new begins
    kLost,
  };

  // Begins to connect; on failure it is lost from the start. The link is its owner's number.
  Connection(const nghttp2::Library& library, const Peer& peer, int epoll, std::size_t its_link)
      : link(its_link), library_(library), epoll_(epoll), fd_(peer.connect()) {
    if (fd_ < 0) {
      lose(std::strerror(errno));
      return;
    }
    nghttp2::Callbacks* callbacks = nullptr;
    if (library_.callbacks_new(&callbacks) != 0) throw std::bad_alloc();
    library_.set_on_frame_recv(callbacks, on_frame);
    library_.set_on_header(callbacks, on_header);
    library_.set_on_data(callbacks, on_data);
    library_.set_on_stream_close(callbacks, on_stream_close);
    const int error = library_.client_with_options(&session_, callbacks, this, nullptr);
    library_.callbacks_del(callbacks);
    if (error != 0) throw std::bad_alloc();
    // Windows that no answer fills, so that the server never waits for this side to read.
    const nghttp2::Setting settings[] = {{nghttp2::kEnablePush, 0},
                                         {nghttp2::kInitialWindow, kWindowBytes}};
    library_.submit_settings(session_, 0, settings, 2);
    library_.set_local_window(session_, 0, 0, kWindowBytes);
    epoll_event event{};
    event.events = EPOLLIN | EPOLLOUT;
    event.data.ptr = this;
    waits_to_write_ = true;
    if (epoll_ctl(epoll_, EPOLL_CTL_ADD, fd_, &event) != 0) lose(std::strerror(errno));
  }

  ~Connection() {
    if (session_ != nullptr) library_.session_del(session_);
    if (fd_ >= 0) close(fd_);
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  State state() const { return state_; }
  bool is_leaving() const { return state_ == State::kDraining || state_ == State::kLost; }
  bool was_ready() const { return was_ready_; }
  const std::string& reason() const { return reason_; }
  std::uint32_t open_streams() const { return open_streams_; }
  bool has_room() const { return state_ == State::kReady && open_streams_ < max_streams_; }

  // Begins a call; it is written by `flush`. False where the connection takes no more.
  bool send(Stream& stream, const std::vector<nghttp2::Header>& headers) {
    nghttp2::DataProvider body{};
    body.source.pointer = &stream;
    body.read = read_body;
    const std::int32_t id =
        library_.submit_request(session_, nullptr, headers.data(), headers.size(), &body, &stream);
    if (id < 0) {
      // It ran out of stream numbers (2^30 calls): another connection has new ones.
      if (state_ == State::kReady) state_ = State::kDraining;
      return false;
    }
    stream.connection = this;
    stream.id = id;
    ++open_streams_;
    unflushed_ = true;
    return true;
  }

  // Resets a stream whose answer is no longer wanted.
  void cancel(Stream& stream) {
    if (state_ == State::kLost) return;
    library_.submit_rst_stream(session_, 0, stream.id, nghttp2::kCancel);
    unflushed_ = true;
  }

  // Reads once what the socket has.
  void receive(std::vector<std::uint8_t>& buffer) {
    if (state_ == State::kLost) return;
    const ssize_t count = recv(fd_, buffer.data(), buffer.size(), 0);
    if (count == 0) return lose("the server closed it");
    if (count < 0) {
      if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) lose(std::strerror(errno));
      return;
    }
    unflushed_ = true;
    const auto bytes = static_cast<std::size_t>(count);
    const ssize_t used = library_.mem_recv(session_, buffer.data(), bytes);
    if (used < 0) lose(library_.error_text(static_cast<int>(used)));
  }

  void writable() { unflushed_ = true; }

  void abandon(const char* reason) { lose(reason); }

  // Writes what the session has, as far as the socket takes it.
  void flush() {
    if (!unflushed_ || state_ == State::kLost) return;
    unflushed_ = false;
    while (true) {
      if (!fill()) return;
      if (written_ == unwritten_.size()) break;
      const ssize_t count =
          ::send(fd_, unwritten_.data() + written_, unwritten_.size() - written_, MSG_NOSIGNAL);
      if (count < 0) {
        if (errno == EINTR) continue;
        if (errno == EAGAIN || errno == EWOULDBLOCK) return wait_to_write(true);
        return lose(std::strerror(errno));
      }
      written_ += static_cast<std::size_t>(count);
    }
    wait_to_write(false);
    if (!library_.want_read(session_) && !library_.want_write(session_))
      lose(state_ == State::kConnecting ? "the peer does not speak HTTP/2" : "HTTP/2 ended on it");
  }

  // Says goodbye, as far as the socket takes it.
  void end() {
    if (state_ == State::kLost) return;
    library_.terminate(session_, nghttp2::kNoError);
    unflushed_ = true;
    flush();
  }

  const std::size_t link;
  std::vector<EndedStream> ended;  // for the owner to collect after receive, flush and end

 private:
  static constexpr std::int32_t kWindowBytes = 1 << 30;
  static constexpr std::size_t kWriteBytes = 1 << 17;

  // Takes frames from the session until there is enough for one write; false where it fails.
  bool fill() {
    if (written_ == unwritten_.size()) {
      unwritten_.clear();
      written_ = 0;
    } else if (written_ > kWriteBytes) {
      const auto begin = unwritten_.begin();
      unwritten_.erase(begin, begin + static_cast<std::ptrdiff_t>(written_));
      written_ = 0;
    }
    while (unwritten_.size() - written_ < kWriteBytes) {
      const std::uint8_t* data = nullptr;
      const ssize_t count = library_.mem_send(session_, &data);
      if (count < 0) {
        lose(library_.error_text(static_cast<int>(count)));
        return false;
      }
      if (count == 0) break;
      unwritten_.insert(unwritten_.end(), data, data + count);
    }
    return true;
  }

  void wait_to_write(bool wait) {
    if (wait == waits_to_write_) return;
    waits_to_write_ = wait;
    epoll_event event{};
    event.events = EPOLLIN;
    if (wait) event.events |= EPOLLOUT;
    event.data.ptr = this;
    if (epoll_ctl(epoll_, EPOLL_CTL_MOD, fd_, &event) != 0) lose(std::strerror(errno));
  }

  // Leaves the session for the destructor: its callbacks may still be on the stack.
  void lose(const char* reason) {
    reason_ = reason;
    state_ = State::kLost;
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

  Stream* find(std::int32_t stream_id) const {
    return static_cast<Stream*>(library_.stream_user(session_, stream_id));
  }

  // libnghttp2's callbacks. They must not throw: C is below them.

  static int on_frame(nghttp2::Session*, const nghttp2::Frame* frame, void* user) noexcept {
    auto& self = *static_cast<Connection*>(user);
    const nghttp2::FrameHeader& header = frame->header;
    if (header.type == nghttp2::kSettings && !(header.flags & nghttp2::kAck)) {
      self.max_streams_ =
          self.library_.remote_setting(self.session_, nghttp2::kMaxConcurrentStreams);
      if (self.state_ == State::kConnecting) self.state_ = State::kReady;
      self.was_ready_ = true;
    } else if (header.type == nghttp2::kGoAway) {
      self.state_ = State::kDraining;
    } else if ((header.type == nghttp2::kHeaders || header.type == nghttp2::kData) &&
               (header.flags & nghttp2::kEndStream)) {
      // Answered before all of the message went out: the rest is of no use any more.
      Stream* stream = self.find(header.stream_id);
      if (stream != nullptr && stream->unsent_bytes > 0) self.cancel(*stream);
    }
    return 0;
  }

  static int on_header(nghttp2::Session*, const nghttp2::Frame* frame, const std::uint8_t* name,
                       std::size_t name_bytes, const std::uint8_t* value, std::size_t value_bytes,
                       std::uint8_t, void* user) noexcept {
    Stream* stream = static_cast<Connection*>(user)->find(frame->header.stream_id);
    if (stream != nullptr)
      stream->answer.on_header({reinterpret_cast<const char*>(name), name_bytes},
                               {reinterpret_cast<const char*>(value), value_bytes});
    return 0;
  }

  static int on_data(nghttp2::Session*, std::uint8_t, std::int32_t stream_id,
                     const std::uint8_t* data, std::size_t bytes, void* user) noexcept {
    Stream* stream = static_cast<Connection*>(user)->find(stream_id);
    if (stream != nullptr) stream->answer.on_data(data, bytes);
    return 0;
  }

  static int on_stream_close(nghttp2::Session*, std::int32_t stream_id, std::uint32_t error,
                             void* user) noexcept {
    auto& self = *static_cast<Connection*>(user);
    Stream* stream = self.find(stream_id);
    if (stream == nullptr) return 0;
    --self.open_streams_;
    self.ended.push_back({stream, error});
    return 0;
  }

  static ssize_t read_body(nghttp2::Session*, std::int32_t, std::uint8_t* to, std::size_t bytes,
                           std::uint32_t* flags, nghttp2::DataSource* source, void*) noexcept {
    auto& stream = *static_cast<Stream*>(source->pointer);
    const std::size_t count = std::min(bytes, stream.unsent_bytes);
    std::memcpy(to, stream.unsent, count);
    stream.unsent += count;
    stream.unsent_bytes -= count;
    if (stream.unsent_bytes == 0) *flags |= nghttp2::kEndOfData;
    return static_cast<ssize_t>(count);
  }

  const nghttp2::Library& library_;
  const int epoll_;
  int fd_;
  nghttp2::Session* session_ = nullptr;
  State state_ = State::kConnecting;
  std::string reason_;
  std::uint32_t open_streams_ = 0;
  std::uint32_t max_streams_ = 0;
  bool was_ready_ = false;
  bool unflushed_ = false;
  bool waits_to_write_ = false;
  std::vector<std::uint8_t> unwritten_;
  std::size_t written_ = 0;
};

}  // namespace sharded_infer::load
