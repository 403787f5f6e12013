// Who has connected.
#pragma once
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdio>
#include <string>

namespace sharded_infer::transport {

// A client's address as far as clients are told apart, and the whole one with its port as gRPC
// writes it. One client may have a /64 network of IPv6. Who connects to a Unix socket has no
// address: its user stands for it. The same as `_names` of
// serving/http_api/connections/listener.py.
inline void name_client(int descriptor, const sockaddr_storage& from, std::string* address,
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

}  // namespace sharded_infer::transport
