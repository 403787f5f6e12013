// The compiled transport with handlers that echo, for a test that builds it with sanitizers.
//
// Prints its ports, of gRPC and of HTTP/1.1; drains when its input ends, and prints what is left
// open.
#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "transport/server.h"

using namespace sharded_infer::transport;

namespace {

constexpr int kThreads = 3, kMost = 64;
constexpr const char* kInfer = "/inference.GRPCInferenceService/ModelInfer";
constexpr const char* kStreamInfer = "/inference.GRPCInferenceService/ModelStreamInfer";
constexpr const char* kFixed = "/inference.GRPCInferenceService/ServerLive";

constexpr std::int32_t kMethods = 3;

Answer* echo(const Event& event) {
  if (event.method < kMethods) return Answer::make(event.data, std::uint32_t(event.bytes));
  const std::string lines = "200 OK\r\ncontent-length: " + std::to_string(event.bytes) + "\r\n";
  return Answer::make_http(lines,
                           {reinterpret_cast<const char*>(event.data), std::size_t(event.bytes)});
}

void serve(Server& server) {
  Event events[kMost];
  int held = 0;
  while ((held = server.fetch(events, held, kMost, 100)) >= 0) {
    for (int at = 0; at < held; ++at) {
      const Event& event = events[at];
      if (event.kind == kCall) server.respond(event.call, echo(event), true);
      if (event.kind == kMessage) server.respond(event.call, echo(event), false);
      if (event.kind == kHalfClosed) server.finish(event.call, 0, "", "");
    }
    server.set_backlog(0.0);
  }
}

std::int32_t listener() {
  const std::int32_t made = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  bind(made, reinterpret_cast<sockaddr*>(&address), sizeof address);
  listen(made, 1024);
  return made;
}

int port_of(int listener) {
  sockaddr_in address{};
  socklen_t bytes = sizeof address;
  getsockname(listener, reinterpret_cast<sockaddr*>(&address), &bytes);
  return ntohs(address.sin_port);
}

Settings settings(const std::int32_t* listeners) {
  static const Method methods[] = {{kInfer, kUnary, kPredict, 1},
                                   {kStreamInfer, MethodKind::kStream, kPredict, 1},
                                   {kFixed, kUnary, kOpen, 0}};
  static const Route routes[] = {{"GET", "/live", kOpen, 1, 0},
                                 {"POST", "/v2/models/{}/infer", kPredict, 0, 64 << 20},
                                 {"*", "**", kMetrics, 0, 0}};
  Settings made{};
  made.listeners = listeners;
  made.listener_count = 1;
  made.methods = methods;
  made.method_count = kMethods;
  made.http_listeners = listeners + 1;
  made.http_listener_count = 1;
  made.routes = routes;
  made.route_count = 3;
  made.token_count = -1;
  made.max_message_bytes = 64 << 20;
  made.max_held_bytes = 384 << 20;
  made.max_connections = 512;
  made.max_address_connections = 384;
  made.max_connection_calls = made.max_calls = 8192;
  made.max_header_bytes = 16 << 10;
  made.max_stream_messages = 64;
  made.handshake_seconds = 10.0;
  made.message_seconds = 30.0;
  made.idle_seconds = 7200.0;
  made.stalled_seconds = 60.0;
  made.keepalive_seconds = 1.0;
  made.keepalive_timeout_seconds = 60.0;
  made.least_ping_seconds = 300.0;
  made.age_seconds = 7200.0;
  made.grace_seconds = 30.0;
  made.busy_poll_seconds = 200e-6;
  return made;
}

}  // namespace

int main() {
  const std::int32_t listeners[] = {listener(), listener()};
  const int port = port_of(listeners[0]), http_port = port_of(listeners[1]);
  Server server(settings(listeners));
  server.set_fixed_answer(2, "", "live");
  std::printf("%d\n%d\n", port, http_port);
  std::fflush(stdout);
  std::vector<std::thread> threads;
  for (int at = 0; at < kThreads; ++at) threads.emplace_back([&] { serve(server); });
  char byte;
  while (read(STDIN_FILENO, &byte, 1) > 0) continue;
  server.drain(10.0);
  for (std::thread& thread : threads) thread.join();
  server.stop();
  const Counters& counters = server.counters();
  std::printf("%lld calls, %lld connections, %lld bytes\n", (long long)counters.calls,
              (long long)counters.connections, (long long)counters.held_bytes);
}
