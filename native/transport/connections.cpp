// Connections from their acceptance to their end.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <string>

#include "server.h"

namespace sharded_infer::transport {

namespace {

constexpr int kAccepts = 64;
// A connection that has been without calls for less does not make room for another.
constexpr double kLeastIdleSeconds = 1.0;
constexpr std::uint32_t kStreamWindow = 256 << 10;
constexpr std::int32_t kConnectionWindow = 4 << 20;
// How long, and of how many connections, what still comes is read after the last was said.
// Idle clients that read nothing do not close: a server that ends waits for them no longer than
// for what was on its way.
constexpr double kLingerSeconds = 2.0, kDrainingLingerSeconds = 0.05;
constexpr std::size_t kMostLingering = 256;
constexpr int kLingerReads = 16;

// A client's address as far as clients are told apart, and the whole one with its port as gRPC
// writes it. One client may have a /64 network of IPv6. Who connects to a Unix socket has no
// address: its user stands for it. The same as `_names` of
// serving/http_api/connections/listener.py.
void name_client(int descriptor, const sockaddr_storage& from, std::string* address,
                 std::string* peer) {
  char text[INET6_ADDRSTRLEN] = "";
  if (from.ss_family == AF_UNIX) {
    ucred user{};
    socklen_t bytes = sizeof user;
    getsockopt(descriptor, SOL_SOCKET, SO_PEERCRED, &user, &bytes);
    *address = "uid " + std::to_string(user.uid);
    *peer = "unix:";
    return;
  }
  if (from.ss_family == AF_INET) {
    const auto& four = reinterpret_cast<const sockaddr_in&>(from);
    inet_ntop(AF_INET, &four.sin_addr, text, sizeof text);
    *address = text;
    *peer = "ipv4:" + *address + ":" + std::to_string(ntohs(four.sin_port));
  } else if (from.ss_family == AF_INET6) {
    const auto& six = reinterpret_cast<const sockaddr_in6&>(from);
    if (IN6_IS_ADDR_V4MAPPED(&six.sin6_addr)) {
      inet_ntop(AF_INET, six.sin6_addr.s6_addr + 12, text, sizeof text);
      *address = text;
      *peer = "ipv4:" + *address + ":" + std::to_string(ntohs(six.sin6_port));
    } else {
      inet_ntop(AF_INET6, &six.sin6_addr, text, sizeof text);
      *peer = "ipv6:[" + std::string(text) + "]:" + std::to_string(ntohs(six.sin6_port));
      for (int at = 0; at < 8; ++at) {
        char byte[3];
        std::snprintf(byte, sizeof byte, "%02x", six.sin6_addr.s6_addr[at]);
        *address += byte;
      }
    }
  }
}

}  // namespace

void Server::accept_all(int listener) {
  for (int count = 0; count < kAccepts; ++count) {
    sockaddr_storage from{};
    socklen_t bytes = sizeof from;
    int descriptor =
        accept4(listener, reinterpret_cast<sockaddr*>(&from), &bytes, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (descriptor < 0 && (errno == EMFILE || errno == ENFILE) && spare_ >= 0) {
      // All descriptors are used up: with the spare one the client is told, and not left waiting.
      close(spare_);
      descriptor = accept(listener, nullptr, nullptr);
      if (descriptor >= 0) close(descriptor);
      spare_ = open("/dev/null", O_RDONLY | O_CLOEXEC);
      ++counters_.too_many_connections;
      continue;
    }
    if (descriptor < 0) return;
    ++counters_.accepted;
    admit_connection(descriptor, from);
  }
}

void Server::close_listeners() {
  for (const int listener : listeners_) {
    // Another process may have the same socket: closing alone would leave it in epoll.
    epoll_ctl(epoll_, EPOLL_CTL_DEL, listener, nullptr);
    close(listener);
  }
  listeners_.clear();
}

void Server::admit_connection(int descriptor, const sockaddr_storage& from) {
  std::string address, peer;
  name_client(descriptor, from, &address, &peer);
  Address& of_address = addresses_[address];
  const auto calmed = calmed_.find(address);
  if (of_address.connections >= settings_.max_address_connections ||
      (calmed != calmed_.end() && calmed->second.take(now_) > 0.0)) {
    ++counters_.too_many_of_address;
    if (of_address.connections == 0) addresses_.erase(address);
    close(descriptor);
    return;
  }
  if (counters_.connections >= settings_.max_connections) {
    // Who has been idle for longest makes room.
    ++counters_.too_many_connections;
    if (idle_first_ == nullptr || now_ < idle_first_->idle_since + kLeastIdleSeconds) {
      if (of_address.connections == 0) addresses_.erase(address);
      close(descriptor);
      return;
    }
    Connection* idle = idle_first_;
    set_idle(idle, false);
    expel(idle, nghttp2::kNoError, "idle");
  }
  ++of_address.connections;
  const int on = 1;
  setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  auto* connection = new Connection;
  connection->server = this;
  connection->of_address = &of_address;
  connection->descriptor = descriptor;
  connection->address = std::move(address);
  connection->peer = std::move(peer);
  connection->began = connection->active = connection->idle_since = connection->moved = now_;
  // Clients that came together leave apart.
  const double jitter = 0.9 + 0.2 * double(counters_.accepted * 7919 % 1000) / 1000.0;
  connection->age = settings_.age_seconds * jitter;
  connection->group = descriptor % kGroups;
  connection->after = groups_[connection->group];
  if (connection->after != nullptr) connection->after->before = connection;
  groups_[connection->group] = connection;
  ++counters_.connections;
  set_idle(connection, true);
  epoll_event wanted{};
  wanted.events = EPOLLIN;
  wanted.data.ptr = connection;
  epoll_ctl(epoll_, EPOLL_CTL_ADD, descriptor, &wanted);
  if (tls_ == nullptr) return start_session(connection);
  connection->shaking_hands = true;
  connection->ssl = tls_->connect(descriptor);
  if (connection->ssl == nullptr) close_soon(connection);
}

void Server::start_session(Connection* connection) {
  http2_.server_new(&connection->session, callbacks_, connection, options_);
  const nghttp2::Setting settings[] = {
      {nghttp2::kMaxConcurrentStreams, std::uint32_t(settings_.max_connection_calls)},
      {nghttp2::kInitialWindow, kStreamWindow},
      {nghttp2::kMaxHeaderListSize, std::uint32_t(settings_.max_header_bytes)},
  };
  http2_.submit_settings(connection->session, 0, settings, 3);
  http2_.set_local_window(connection->session, 0, 0, kConnectionWindow);
  touch(connection);
}

void Server::touch(Connection* connection) {
  // A dead one is freed at the end of the round, before it would be flushed.
  if (connection->touched || connection->dead) return;
  connection->touched = true;
  touched_.push_back(connection);
}

void Server::set_idle(Connection* connection, bool idle) {
  if (connection->is_idle == idle) return;
  connection->is_idle = idle;
  if (idle) {
    connection->idle_since = now_;
    connection->idle_before = idle_last_;
    connection->idle_after = nullptr;
    (idle_last_ == nullptr ? idle_first_ : idle_last_->idle_after) = connection;
    idle_last_ = connection;
  } else {
    (connection->idle_before == nullptr ? idle_first_ : connection->idle_before->idle_after) =
        connection->idle_after;
    (connection->idle_after == nullptr ? idle_last_ : connection->idle_after->idle_before) =
        connection->idle_before;
  }
}

void Server::bury_dead() {
  for (Connection* connection : dead_) {
    while (connection->first_call != nullptr) forget(connection->first_call);
    set_idle(connection, false);
    if (connection->session != nullptr) http2_.session_del(connection->session);
    if (connection->ssl != nullptr) {
      crypto_->clear_errors();
      crypto_->shutdown(connection->ssl);
      crypto_->ssl_free(connection->ssl);
    }
    close_descriptor(connection->descriptor, connection->said_goaway);
    (connection->before == nullptr ? groups_[connection->group] : connection->before->after) =
        connection->after;
    if (connection->after != nullptr) connection->after->before = connection->before;
    if (--connection->of_address->connections == 0) addresses_.erase(connection->address);
    --counters_.connections;
    delete connection;
  }
  dead_.clear();
}

// What was sent last, such as a GOAWAY, must not be lost to a reset by input that nobody read: such
// a socket is read until its client closes it too, for a while.
void Server::close_descriptor(int descriptor, bool has_said_goodbye) {
  if (has_said_goodbye && lingering_.size() < kMostLingering && !stopping_) {
    shutdown(descriptor, SHUT_WR);
    epoll_ctl(epoll_, EPOLL_CTL_DEL, descriptor, nullptr);
    lingering_.push_back({descriptor, now_});
  } else {
    close(descriptor);
  }
}

void Server::read_lingering() {
  const double patience = draining_ ? kDrainingLingerSeconds : kLingerSeconds;
  std::size_t kept = 0;
  for (const Lingering& one : lingering_) {
    ssize_t got = 1;
    for (int reads = 0; reads < kLingerReads && got > 0; ++reads)
      got = recv(one.descriptor, buffer_.data(), buffer_.size(), MSG_DONTWAIT);
    const bool waits = got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR));
    if (waits && now_ < one.since + patience && !stopping_)
      lingering_[kept++] = one;
    else
      close(one.descriptor);
  }
  lingering_.resize(kept);
}

}  // namespace sharded_infer::transport
