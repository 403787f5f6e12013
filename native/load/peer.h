// The server's address, and sockets that connect to it.
#pragma once
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>

namespace sharded_infer::load {

// Given in digits, so that no name is looked up and nothing blocks.
class Peer {
 public:
  // Throws std::runtime_error.
  Peer(const char* address, const char* port) {
    addrinfo hints{};
    hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (const int error = getaddrinfo(address, port, &hints, &found))
      throw std::runtime_error(std::string(address) + ": " + gai_strerror(error));
    std::memcpy(&address_, found->ai_addr, found->ai_addrlen);
    length_ = found->ai_addrlen;
    freeaddrinfo(found);
  }

  // A socket that is connecting, or -1 with errno.
  int connect() const {
    const int fd = socket(address_.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return fd;
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    const auto* address = reinterpret_cast<const sockaddr*>(&address_);
    if (::connect(fd, address, length_) == 0 || errno == EINPROGRESS) return fd;
    const int error = errno;
    close(fd);
    errno = error;
    return -1;
  }

 private:
  sockaddr_storage address_{};
  socklen_t length_ = 0;
};

}  // namespace sharded_infer::load
