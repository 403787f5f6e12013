// Bytes between a connection's socket and its HTTP/2 session, with or without TLS.
#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>

#include "callbacks.h"
#include "server.h"

namespace sharded_infer::transport {

namespace {

constexpr int kReadsARound = 4;
constexpr std::size_t kOutBytes = 64 << 10;
constexpr std::size_t kIdleOutBytes = 16 << 10;
// Frames that may wait for a client that takes none, beside one for each call.
constexpr std::size_t kMostWaitingFrames = 4096;

bool http2_was_chosen(const openssl::Library& library, const openssl::Ssl* ssl) {
  const unsigned char* name = nullptr;
  unsigned bytes = 0;
  library.chosen_protocol(ssl, &name, &bytes);
  return bytes == 2 && name[0] == 'h' && name[1] == '2';
}

}  // namespace

// Whether TLS stands; the connection may have been closed.
bool Server::shake_hands(Connection* connection) {
  crypto_->clear_errors();
  const int result = crypto_->accept(connection->ssl);
  if (result == 1 && http2_was_chosen(*crypto_, connection->ssl)) {
    connection->shaking_hands = false;
    watch(connection, false);
    start_session(connection);
    return true;
  }
  const int error = result == 1 ? 0 : crypto_->error(connection->ssl, result);
  if (error == openssl::kWantWrite) {
    watch(connection, true);
  } else if (error != openssl::kWantRead) {
    ++counters_.handshakes_failed;
    close_soon(connection);
  }
  return false;
}

void Server::readable(Connection* connection) {
  if (connection->shaking_hands && !shake_hands(connection)) return;
  for (int round = 0; round < kReadsARound; ++round) {
    ssize_t got;
    if (connection->ssl != nullptr) {
      crypto_->clear_errors();
      got = crypto_->read(connection->ssl, buffer_.data(), int(buffer_.size()));
      if (got <= 0) {
        const int error = crypto_->error(connection->ssl, int(got));
        if (error == openssl::kWantRead || error == openssl::kWantWrite) break;
        return close_soon(connection);
      }
    } else {
      got = recv(connection->descriptor, buffer_.data(), buffer_.size(), 0);
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) break;
      if (got <= 0) return close_soon(connection);
    }
    connection->active = now_;
    if (http2_.mem_recv(connection->session, buffer_.data(), std::size_t(got)) < 0) {
      ++counters_.protocol_errors;
      write_out(connection);
      return close_soon(connection);
    }
    if (connection->expelled) break;
    if (connection->waits_to_write && http2_.queued_frames(connection->session) >
                                          kMostWaitingFrames + std::size_t(connection->calls)) {
      ++counters_.not_reading;
      return close_soon(connection);
    }
    if (connection->ssl == nullptr && std::size_t(got) < buffer_.size()) break;
    // What OpenSSL holds already, epoll does not tell of.
    if (connection->ssl != nullptr && crypto_->pending(connection->ssl) == 0) break;
  }
  touch(connection);
}

void Server::write_out(Connection* connection) {
  connection->touched = false;
  if (connection->dead) return;
  if (connection->shaking_hands) {
    readable(connection);
    return;
  }
  for (;;) {
    if (connection->written == connection->out.size()) {
      connection->out.clear();
      connection->written = 0;
      const std::uint8_t* part = nullptr;
      ssize_t bytes = 0;
      while (connection->out.size() < kOutBytes &&
             (bytes = http2_.mem_send(connection->session, &part)) > 0)
        connection->out.append(reinterpret_cast<const char*>(part), std::size_t(bytes));
      if (connection->out.empty()) break;
    }
    const char* from = connection->out.data() + connection->written;
    const std::size_t left = connection->out.size() - connection->written;
    ssize_t sent;
    if (connection->ssl != nullptr) {
      crypto_->clear_errors();
      sent = crypto_->write(connection->ssl, from, int(left));
      if (sent <= 0) {
        const int error = crypto_->error(connection->ssl, int(sent));
        if (error != openssl::kWantWrite && error != openssl::kWantRead)
          return close_soon(connection);
        return connection->expelled ? close_soon(connection) : watch(connection, true);
      }
    } else {
      sent = send(connection->descriptor, from, left, MSG_NOSIGNAL);
      if (sent < 0 && errno != EAGAIN && errno != EINTR) return close_soon(connection);
      if (sent < 0) return connection->expelled ? close_soon(connection) : watch(connection, true);
    }
    connection->written += std::size_t(sent);
  }
  if (connection->answer_bytes == 0) connection->moved = now_;
  // An idle connection holds no memory for its output.
  if (connection->calls == 0 && connection->out.capacity() > kIdleOutBytes)
    std::string().swap(connection->out);
  watch(connection, false);
  const bool over =
      !http2_.want_read(connection->session) && !http2_.want_write(connection->session);
  if (over || connection->expelled || (connection->said_goaway && connection->calls == 0))
    close_soon(connection);
}

// What epoll waits for: input, and room for output where some is left.
void Server::watch(Connection* connection, bool writing) {
  if (connection->waits_to_write == writing) return;
  connection->waits_to_write = writing;
  epoll_event wanted{};
  wanted.events = EPOLLIN | (writing ? std::uint32_t(EPOLLOUT) : 0u);
  wanted.data.ptr = connection;
  epoll_ctl(epoll_, EPOLL_CTL_MOD, connection->descriptor, &wanted);
}

void Server::close_soon(Connection* connection) {
  if (connection->dead) return;
  connection->dead = true;
  dead_.push_back(connection);
}

}  // namespace sharded_infer::transport
