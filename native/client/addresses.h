// The addresses of an endpoint. A name is looked up in a thread of its own, since the system's way
// may wait for seconds; addresses in digits and Unix sockets need none.
#pragma once
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "abi/client.h"

namespace sharded_infer::client {

struct Address {
  sockaddr_storage storage{};
  socklen_t bytes = 0;

  // A socket that connects, or -1 and errno.
  int connect() const {
    const int made = socket(storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (made < 0) return made;
    const int on = 1;
    if (storage.ss_family != AF_UNIX) setsockopt(made, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (::connect(made, reinterpret_cast<const sockaddr*>(&storage), bytes) == 0 ||
        errno == EINPROGRESS)
      return made;
    const int error = errno;
    close(made);
    errno = error;
    return -1;
  }
};

class Addresses : public std::enable_shared_from_this<Addresses> {
 public:
  // Begins to look up; `is_known` says when it is done.
  static std::shared_ptr<Addresses> of(const EndpointSettings& endpoint) {
    auto made = std::make_shared<Addresses>();
    if (endpoint.host == nullptr) {
      made->add_unix(endpoint.port);
    } else if (!made->look_up(endpoint.host, endpoint.port, AI_NUMERICHOST)) {
      made->look_up_elsewhere(endpoint.host, endpoint.port);
      return made;
    }
    made->known_ = true;
    return made;
  }
  Addresses() = default;
  ~Addresses() {
    if (wake_ >= 0) close(wake_);
  }
  Addresses(const Addresses&) = delete;
  Addresses& operator=(const Addresses&) = delete;

  bool is_known() const { return known_; }
  int descriptor() const { return wake_; }  // readable once they are known
  const std::vector<Address>& found() const { return found_; }
  const std::string& error() const { return error_; }

 private:
  void add_unix(const char* path) {
    Address made;
    auto& address = reinterpret_cast<sockaddr_un&>(made.storage);
    if (std::strlen(path) >= sizeof address.sun_path) {
      error_ = "the path of the Unix socket is too long";
      return;
    }
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, path);
    made.bytes = sizeof address;
    found_.push_back(made);
  }

  bool look_up(const char* host, const char* port, int flags) {
    addrinfo hints{};
    hints.ai_flags = flags | AI_NUMERICSERV;
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* first = nullptr;
    if (const int error = getaddrinfo(host, port, &hints, &first)) {
      error_ = std::string("the name cannot be looked up: ") + gai_strerror(error);
      return false;
    }
    for (const addrinfo* one = first; one != nullptr; one = one->ai_next) {
      Address made;
      std::memcpy(&made.storage, one->ai_addr, one->ai_addrlen);
      made.bytes = one->ai_addrlen;
      found_.push_back(made);
    }
    freeaddrinfo(first);
    error_.clear();
    return true;
  }

  void look_up_elsewhere(const std::string& host, const std::string& port) {
    wake_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    // The process's signals are other threads' to handle.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    // Nobody waits for the thread: it has a share of this, and uses nothing else.
    std::thread([self = shared_from_this(), host, port] {
      self->look_up(host.c_str(), port.c_str(), 0);
      self->known_ = true;
      const std::uint64_t one = 1;
      [[maybe_unused]] const ssize_t written = write(self->wake_, &one, sizeof one);
    }).detach();
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  std::vector<Address> found_;
  std::string error_;
  std::atomic<bool> known_{false};
  int wake_ = -1;
};

}  // namespace sharded_infer::client
