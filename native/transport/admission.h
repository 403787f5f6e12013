// Who may call: tokens, their scopes, and rates, decided on a call's headers.
#pragma once
#include <atomic>
#include <cmath>
#include <cstdio>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "call.h"
#include "openssl.h"
#include "settings.h"
#include "token_bucket.h"

namespace sharded_infer::transport {

struct Refusal {
  std::int32_t code = 0;  // 0: there is none
  std::string words;
  double retry_seconds = -1.0;
  std::int32_t http_status = 0;  // 0: that of the code
};

class Tokens {
 public:
  Tokens(const Token* tokens, std::int32_t count, const openssl::Library* library)
      : library_(library) {
    for (std::int32_t at = 0; at < count; ++at) {
      Known known{{}, tokens[at].scopes, tokens[at].name};
      std::memcpy(known.digest, tokens[at].digest, sizeof known.digest);
      known_.push_back(known);
    }
  }

  // The token's position, or -1. All digests are compared, so that the time tells nothing.
  int find(std::string_view token) const {
    std::uint8_t digest[32];
    library_->sha256(reinterpret_cast<const std::uint8_t*>(token.data()), token.size(), digest);
    int found = -1;
    for (std::size_t at = 0; at < known_.size(); ++at)
      if (library_->same_bytes(digest, known_[at].digest, sizeof digest) == 0) found = int(at);
    return found;
  }
  const std::string& name(int at) const { return known_[std::size_t(at)].name; }
  std::int32_t scopes(int at) const { return known_[std::size_t(at)].scopes; }

 private:
  struct Known {
    std::uint8_t digest[32];
    std::int32_t scopes;
    std::string name;
  };
  const openssl::Library* library_;
  std::vector<Known> known_;
};

// Calls a second of each client, by all servers of a process together.
class Rates {
 public:
  Rates(double rate, double burst) : rate_(rate), burst_(burst) {}

  bool are_limited() const { return rate_ > 0.0; }
  // Takes one call of a client, from any thread: 0, or the seconds until there may be one.
  double take(const std::string& client, double now) {
    std::lock_guard<std::mutex> held(lock_);
    if (clients_.size() >= kMostClients)
      for (auto at = clients_.begin(); at != clients_.end();)
        at = at->second.is_full(now) ? clients_.erase(at) : std::next(at);
    if (clients_.size() >= kMostClients) clients_.clear();
    return clients_.try_emplace(client, rate_, burst_).first->second.take(now);
  }

 private:
  // Bound of remembered clients; those that may call again at once are forgotten first.
  static constexpr std::size_t kMostClients = 10000;

  double rate_, burst_;
  std::mutex lock_;
  std::unordered_map<std::string, TokenBucket> clients_;
};

class Admission {
 public:
  explicit Admission(std::shared_ptr<Rates> rates) : rates_(std::move(rates)) {}

  const std::shared_ptr<Rates>& rates() const { return rates_; }

  // Replaces the tokens, from any thread; null: calls need none.
  void set_tokens(std::shared_ptr<const Tokens> tokens) {
    std::lock_guard<std::mutex> held(lock_);
    next_ = std::move(tokens);
    changed_ = true;
  }

  // Decides on a call by its headers. `address` is the client's, without its port.
  Refusal admit(const RequestHead& head, std::int32_t access, const std::string& address,
                double now) {
    if (access & kElsewhere)
      return {7, "this server answers what changes it on its admin address alone"};
    if (access & kNotHere) return {7, "this is the admin address: it answers no predict calls"};
    if (access == kOpen) return {};
    if (changed_.exchange(false)) {
      std::lock_guard<std::mutex> held(lock_);
      tokens_ = next_;
    }
    std::string client = address;
    if (tokens_ != nullptr) {
      if (!head.has_authorization)
        return {16, "expected the header authorization: Bearer TOKEN, got none"};
      const std::string_view token = bearer_token(head.authorization);
      const int known = token.empty() ? -1 : tokens_->find(token);
      if (known < 0)
        return {16,
                "expected the header authorization: Bearer TOKEN with a known token, got another"};
      if (access != kAnyToken && !(tokens_->scopes(known) & access))
        return {7, "the token '" + tokens_->name(known) + "' has not the scope '" +
                       scope_name(access) + "'"};
      client = "token " + tokens_->name(known);
    }
    if (!rates_->are_limited() || client.empty()) return {};
    const double seconds = rates_->take(client, now);
    if (seconds == 0.0) return {};
    char text[32];
    std::snprintf(text, sizeof text, "%.3g", seconds);
    return {8, "too many calls: expected fewer from '" + client + "'; again in " + text + " s",
            seconds};
  }

 private:
  static std::string_view bearer_token(std::string_view text) {
    const std::size_t space = text.find(' ');
    if (space != 6) return {};
    for (std::size_t at = 0; at < 6; ++at)
      if ((text[at] | 0x20) != "bearer"[at]) return {};
    text.remove_prefix(7);
    while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
    while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
    return text;
  }
  static const char* scope_name(std::int32_t access) {
    return access == kPredict ? "predict" : access == kMetrics ? "metrics" : "admin";
  }

  const std::shared_ptr<Rates> rates_;
  std::shared_ptr<const Tokens> tokens_, next_;
  std::atomic<bool> changed_{false};
  std::mutex lock_;
};

}  // namespace sharded_infer::transport
