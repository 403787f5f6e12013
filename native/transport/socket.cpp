// Bytes between a connection's socket and its session, with or without TLS.
#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>

#include "server.h"

namespace sharded_infer::transport {

namespace {

constexpr int kReadsARound = 4;
constexpr std::size_t kOutBytes = 64 << 10;
constexpr std::size_t kIdleOutBytes = 16 << 10;

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
  if (result == 1 && (connection->is_http1 || http2_was_chosen(*crypto_, connection->ssl))) {
    connection->shaking_hands = false;
    start_session(connection);
    watch(connection, false);
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
    if (!connection->session->read(buffer_.data(), std::size_t(got))) {
      ++counters_.protocol_errors;
      write_out(connection);
      return close_soon(connection);
    }
    if (connection->expelled || !connection->session->wants_read()) break;
    if (connection->waits_to_write && connection->session->is_flooded()) {
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
      connection->session->write(&connection->out, kOutBytes);
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
  connection->session->written();
  watch(connection, false);
  // What OpenSSL holds already, epoll does not tell of.
  if (connection->ssl != nullptr && connection->session->wants_read() &&
      crypto_->pending(connection->ssl) > 0)
    readable(connection);
  if (connection->session->is_over() || connection->expelled ||
      (connection->ending && connection->calls == 0))
    close_soon(connection);
}

// What epoll waits for: input where it is wanted, and room for output where some is left.
void Server::watch(Connection* connection, bool writing) {
  const bool reading = connection->session == nullptr || connection->session->wants_read();
  if (connection->waits_to_write == writing && connection->waits_to_read == reading) return;
  connection->waits_to_write = writing;
  connection->waits_to_read = reading;
  epoll_event wanted{};
  wanted.events =
      (reading ? std::uint32_t(EPOLLIN) : 0u) | (writing ? std::uint32_t(EPOLLOUT) : 0u);
  wanted.data.ptr = connection;
  epoll_ctl(epoll_, EPOLL_CTL_MOD, connection->descriptor, &wanted);
}

void Server::close_soon(Connection* connection) {
  if (connection->dead) return;
  connection->dead = true;
  dead_.push_back(connection);
}

}  // namespace sharded_infer::transport
