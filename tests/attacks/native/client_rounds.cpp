// Rounds of calls with the compiled client, for a test that builds it with sanitizers.
//
// usage: client_rounds ROUNDS AUTHORITIES HONEST_PORT PORT...
//
// AUTHORITIES is a file of certificates for TLS, or - without. Each round asks all ports of this
// machine at once, by name; what the honest server answers must be what it was asked. Prints how
// many calls ended.
#include <netdb.h>
#include <netinet/in.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "client/client.h"

using namespace sharded_infer::client;

// Every name has two addresses, and nobody listens on the first.
extern "C" int getaddrinfo(const char*, const char* port, const addrinfo* hints,
                           addrinfo** found) noexcept {
  if (hints->ai_flags & AI_NUMERICHOST) return EAI_NONAME;
  *found = nullptr;
  for (const std::uint32_t address : {INADDR_LOOPBACK, INADDR_LOOPBACK + 1}) {
    auto* made = static_cast<addrinfo*>(std::calloc(1, sizeof(addrinfo) + sizeof(sockaddr_in)));
    auto* to = reinterpret_cast<sockaddr_in*>(made + 1);
    to->sin_family = AF_INET;
    to->sin_addr.s_addr = htonl(address);
    to->sin_port = htons(std::uint16_t(std::atoi(port)));
    made->ai_family = AF_INET;
    made->ai_addr = reinterpret_cast<sockaddr*>(to);
    made->ai_addrlen = sizeof *to;
    made->ai_next = *found;
    *found = made;
  }
  return 0;
}

extern "C" void freeaddrinfo(addrinfo* one) noexcept {
  while (one != nullptr) std::free(std::exchange(one, one->ai_next));
}

namespace {

constexpr double kSeconds = 60.0;
constexpr std::size_t kMostBytes = 300'000;

Settings settings(const std::vector<EndpointSettings>& endpoints, const char* authorities) {
  static const char* const paths[] = {"/test.Service/Echo"};
  Settings made{};
  made.endpoints = endpoints.data();
  made.endpoint_count = std::int32_t(endpoints.size());
  made.paths = paths;
  made.path_count = 1;
  made.user_agent = "test";
  if (std::strcmp(authorities, "-") != 0) made.ca = authorities;
  made.authorization = "Bearer secret";
  made.max_answer_bytes = 1 << 20;
  made.max_header_bytes = 16 << 10;
  made.connect_seconds = 5.0;
  made.keepalive_seconds = 0.05;
  made.keepalive_timeout_seconds = 30.0;
  made.least_backoff_seconds = 0.001;
  made.most_backoff_seconds = 0.01;
  return made;
}

bool is_whole(Client& client, std::int32_t number, const std::vector<std::uint8_t>& sent) {
  const Ended ended = client.result(number);
  const bool whole = ended.code == kOk && std::size_t(ended.bytes) == sent.size() &&
                     std::memcmp(ended.message, sent.data(), sent.size()) == 0;
  if (!whole)
    std::printf("%d: %.*s\n", ended.code, int(ended.words_bytes),
                static_cast<const char*>(ended.words));
  if (ended.message != nullptr) client.give_back(ended.message);
  return whole;
}

}  // namespace

int main(int count, char** arguments) {
  std::vector<EndpointSettings> endpoints;
  for (int at = 3; at < count; ++at)
    endpoints.push_back({arguments[at], "localhost", arguments[at], "localhost", "localhost"});
  // As Python does: OpenSSL writes to connections that their peers have closed.
  std::signal(SIGPIPE, SIG_IGN);
  std::minstd_rand random(7);
  int ended = 0;
  for (int lives = 0; lives < 2; ++lives) {
    Client client(settings(endpoints, arguments[2]));
    for (int round = 0; round < std::atoi(arguments[1]); ++round) {
      std::vector<std::uint8_t> sent(random() % kMostBytes + 1);
      for (std::uint8_t& byte : sent) byte = std::uint8_t(random());
      const std::string other = "the request";
      std::vector<Outgoing> calls;
      for (std::int32_t at = 0; at < std::int32_t(endpoints.size()); ++at) {
        const bool honest = at == 0;
        calls.push_back({honest ? sent.data() : reinterpret_cast<const std::uint8_t*>(other.data()),
                         std::int64_t(honest ? sent.size() : other.size()), "00-ab-cd-01",
                         honest ? kSeconds : 0.2, at, 0, std::int32_t(random() % 2)});
      }
      client.start(calls.data(), std::int32_t(calls.size()));
      std::vector<std::int32_t> numbers(2 * calls.size());
      const auto most = std::int32_t(numbers.size());
      ended += client.wait(kSeconds, false, numbers.data(), most);
      // A second call to some, while the first may be under way; others are given up.
      client.start(calls.data(), std::int32_t(random() % calls.size()));
      for (int times = 0; times < 3; ++times)
        client.cancel(std::int32_t(1 + random() % (calls.size() - 1)));
      ended += client.wait(random() % 8 == 0 ? 0.0 : kSeconds, true, numbers.data(), most);
      if (client.open() == 0 && !is_whole(client, 0, sent)) return 1;
      client.clear();
    }
  }
  std::printf("%d ended\n", ended);
}
