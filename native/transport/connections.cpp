// Connections from their acceptance to their end.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <string>

#include "server.h"

namespace sharded_infer::transport {

namespace {

constexpr std::int64_t kAccepts = 64;
// Of HTTP/1.1 in a round, and the rounds until a client has been read.
constexpr std::int64_t kFewAccepts = 8, kRounds = 8;
// Connections beyond the limits, which may only ask the probes.
constexpr std::int64_t kProbePlaces = 64;
constexpr std::size_t kSpares = 8;
// A connection that has been without calls for less does not make room for another.
constexpr double kLeastIdleSeconds = 1.0;
// How long, and of how many connections, what still comes is read after the last was said.
// Idle clients that read nothing do not close: a server that ends waits for them no longer than
// for what was on its way.
constexpr double kLingerSeconds = 2.0, kDrainingLingerSeconds = 0.05;
constexpr std::size_t kMostLingering = 256;
constexpr int kLingerReads = 16;
// As much as HTTP/2's windows allow may be on its way.
constexpr std::size_t kMostLingerBytes = 8 << 20;

// A client's address as far as clients are told apart, and the whole one with its port as gRPC
// writes it. One client may have a /64 network of IPv6. Who connects to a Unix socket has no
// address: its user stands for it.
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

void Server::accept_all(const Listener& listener) {
  // A client that sends its request at once is read a round later: it must not make room for
  // another before.
  const std::int64_t most =
      listener.is_http1
          ? std::clamp<std::int64_t>(settings_.max_connections / kRounds, 1, kFewAccepts)
          : kAccepts;
  for (std::int64_t count = 0; count < most; ++count) {
    sockaddr_storage from{};
    socklen_t bytes = sizeof from;
    const int descriptor = accept4(listener.descriptor, reinterpret_cast<sockaddr*>(&from), &bytes,
                                   SOCK_NONBLOCK | SOCK_CLOEXEC);
    const bool is_full = descriptor < 0 && (errno == EMFILE || errno == ENFILE ||
                                            errno == ENOBUFS || errno == ENOMEM);
    if (is_full && make_descriptor_room(listener)) continue;
    if (descriptor < 0) return;
    ++counters_.accepted;
    admit_connection(descriptor, from, listener.is_http1);
  }
}

// All descriptors are used up: makes room for the next client, or refuses it; whether another may
// be waiting. A client is told, and not left waiting.
bool Server::make_descriptor_room(const Listener& listener) {
  // The system needs a descriptor before it looks whether a client waits.
  pollfd waiting{listener.descriptor, POLLIN, 0};
  if (poll(&waiting, 1, 0) <= 0 || spares_.empty()) return false;
  ++(listener.is_http1 ? counters_.no_descriptors : counters_.too_many_connections);
  Connection* evicted = listener.is_http1 ? longest_waiting(nullptr) : nullptr;
  if (evicted != nullptr) expel(evicted, false, "waiting");
  const bool is_last = spares_.size() == 1;
  // Its descriptor is free at the end of the round.
  if (is_last && evicted != nullptr) return false;
  close(spares_.back());
  spares_.pop_back();
  if (listener.is_http1 && !is_last) return true;
  const int refused = accept(listener.descriptor, nullptr, nullptr);
  if (refused >= 0) close(refused);
  fill_spares();
  return true;
}

void Server::fill_spares() {
  while (spares_.size() < kSpares) {
    const int spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (spare < 0) return;
    spares_.push_back(spare);
  }
}

void Server::close_listeners() {
  for (const Listener& listener : listeners_) {
    // Another process may have the same socket: closing alone would leave it in epoll.
    epoll_ctl(epoll_, EPOLL_CTL_DEL, listener.descriptor, nullptr);
    close(listener.descriptor);
  }
  listeners_.clear();
}

// The connection that has waited for its client for longest: any, or an address's.
Connection* Server::longest_waiting(const Address* address) const {
  for (Connection* one = idle_first_; one != nullptr; one = one->idle_after)
    if (!one->dead && !one->expelled && !one->only_probes &&
        (address == nullptr || one->of_address == address))
      return one;
  return nullptr;
}

// Makes room for another connection of an address that has too many, or (null) of any; whether it
// could. Who has waited for longest goes.
bool Server::make_room(const Address* crowded, bool is_http1) {
  Connection* leaving = nullptr;
  if (is_http1) {
    const Address* most = crowded;
    for (const auto& [name, address] : addresses_)
      if (crowded == nullptr && (most == nullptr || address.connections > most->connections))
        most = &address;
    leaving = longest_waiting(most);
    if (leaving == nullptr && crowded == nullptr) leaving = longest_waiting(nullptr);
  } else if (crowded == nullptr) {
    leaving = longest_waiting(nullptr);
    if (leaving != nullptr && now_ < leaving->idle_since + kLeastIdleSeconds) leaving = nullptr;
  }
  if (leaving == nullptr) return false;
  set_idle(leaving, false);
  expel(leaving, false, "idle");
  return true;
}

// Whether there is a place for another connection that may only ask the probes.
bool Server::make_probe_room() {
  if (probes_ < kProbePlaces) return true;
  for (Connection* one = idle_first_; one != nullptr; one = one->idle_after) {
    if (!one->only_probes || one->dead || one->calls > 0) continue;
    expel(one, false, "probe");
    return true;
  }
  return false;
}

void Server::admit_connection(int descriptor, const sockaddr_storage& from, bool is_http1) {
  std::string address, peer;
  name_client(descriptor, from, &address, &peer);
  Address& of_address = addresses_[address];
  const auto calmed = calmed_.find(address);
  const bool is_crowded = of_address.connections >= settings_.max_address_connections ||
                          (calmed != calmed_.end() && calmed->second.take(now_) > 0.0);
  bool only_probes = false;
  if (is_crowded || counters_.connections - probes_ >= settings_.max_connections) {
    ++(is_crowded ? counters_.too_many_of_address : counters_.too_many_connections);
    if (!make_room(is_crowded ? &of_address : nullptr, is_http1)) {
      only_probes = is_http1 && make_probe_room();
      if (!only_probes) {
        if (of_address.connections + of_address.probes == 0) addresses_.erase(address);
        close(descriptor);
        return;
      }
    }
  }
  ++(only_probes ? of_address.probes : of_address.connections);
  probes_ += only_probes;
  const int on = 1;
  setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  auto* connection = new Connection;
  connection->server = this;
  connection->is_http1 = is_http1;
  connection->only_probes = only_probes;
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
  Tls* tls = is_http1 ? http_tls_.get() : tls_.get();
  if (tls == nullptr) return start_session(connection);
  connection->shaking_hands = true;
  connection->ssl = tls->connect(descriptor);
  if (connection->ssl == nullptr) close_soon(connection);
}

void Server::start_session(Connection* connection) {
  if (connection->is_http1)
    connection->session = std::make_unique<Http1Session>(connection);
  else
    connection->session = std::make_unique<Http2Session>(*http2_, connection);
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

// A connection begins to wait for something else of its client.
void Server::wait_anew(Connection* connection) {
  if (!connection->is_idle) return;
  set_idle(connection, false);
  set_idle(connection, true);
}

void Server::bury_dead() {
  for (Connection* connection : dead_) {
    while (connection->first_call != nullptr) forget(connection->first_call);
    set_idle(connection, false);
    connection->session.reset();
    if (connection->ssl != nullptr) {
      crypto_->clear_errors();
      crypto_->shutdown(connection->ssl);
      crypto_->ssl_free(connection->ssl);
    }
    close_descriptor(connection->descriptor, connection->lingers);
    (connection->before == nullptr ? groups_[connection->group] : connection->before->after) =
        connection->after;
    if (connection->after != nullptr) connection->after->before = connection->before;
    Address& of_address = *connection->of_address;
    --(connection->only_probes ? of_address.probes : of_address.connections);
    probes_ -= connection->only_probes;
    if (of_address.connections + of_address.probes == 0) addresses_.erase(connection->address);
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
    lingering_.push_back({descriptor, now_, kMostLingerBytes});
  } else {
    close(descriptor);
  }
}

void Server::read_lingering() {
  const double patience = draining_ ? kDrainingLingerSeconds : kLingerSeconds;
  std::size_t kept = 0;
  for (Lingering& one : lingering_) {
    ssize_t got = 1;
    for (int reads = 0; reads < kLingerReads && got > 0 && one.left > 0; ++reads) {
      got = recv(one.descriptor, buffer_.data(), std::min(buffer_.size(), one.left), MSG_DONTWAIT);
      one.left -= std::size_t(std::max<ssize_t>(got, 0));
    }
    const bool waits =
        one.left > 0 && (got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR)));
    if (waits && now_ < one.since + patience && !stopping_)
      lingering_[kept++] = one;
    else
      close(one.descriptor);
  }
  lingering_.resize(kept);
}

}  // namespace sharded_infer::transport
