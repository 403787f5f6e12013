// One endpoint: its connection, those that it has left, and calls that wait for one.
#pragma once
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "connection.h"

namespace sharded_infer::client {

class Endpoint {
 public:
  Endpoint(const Shared& shared, const EndpointSettings& settings)
      : shared_(shared), settings_(settings) {}

  const char* name() const { return settings_.name; }
  void start(Call* call) { waiting_.push_back(call); }
  // The call has ended, whatever comes.
  void give_up(Call* call);
  // Does what can be done now: replaces connections, sends calls again, begins those that wait.
  void tend(double now);
  double next_time() const;
  // Forgets which calls were returned: all have ended.
  void clear() {
    each_connection([](Connection& one) { one.returned.clear(); });
  }

  // Calls `visit` with each connection that something may come on.
  template <class Visitor>
  void each_connection(Visitor visit) const {
    if (current_ != nullptr) visit(*current_);
    for (const auto& one : leaving_) visit(*one);
  }

 private:
  void tend_once(double now);
  void count_failure(const Connection& ended, double now);
  void bury(const Connection& lost, double now);
  void take_returned(Connection& connection);
  void send_again(Call* call, bool is_safe, const std::string& why);
  void fail_waiting();
  void connect(double now);
  double backoff();

  const Shared& shared_;
  const EndpointSettings settings_;
  std::shared_ptr<Addresses> addresses_;
  std::unique_ptr<Connection> current_;
  std::vector<std::unique_ptr<Connection>> leaving_;
  std::vector<Call*> waiting_;
  int failures_ = 0;  // connections in a row that brought no answer
  double retry_at_ = 0.0;
  std::string reason_;
  std::minstd_rand random_{std::random_device{}()};
};

}  // namespace sharded_infer::client
