// The connections of a load: as many as were asked for, each replaced when it is lost or draining.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "call.h"
#include "connection.h"

namespace sharded_infer::load {

class Pool {
 public:
  Pool(const nghttp2::Library& library, const Peer& peer, int epoll, double connect_seconds,
       std::size_t size)
      : library_(library),
        peer_(peer),
        epoll_(epoll),
        connect_seconds_(connect_seconds),
        lanes_(size),
        links_(size) {}

  template <class Action>
  void for_each(Action action) {
    for (Lane& lane : lanes_)
      if (lane.connection != nullptr) action(*lane.connection);
    for (const auto& connection : leaving_) action(*connection);
  }

  // Begins to connect what has no connection, once it may.
  void connect(double time) {
    for (std::size_t link = 0; link < lanes_.size(); ++link) {
      Lane& lane = lanes_[link];
      if (lane.connection == nullptr && time >= lane.next) {
        lane.connection = std::make_unique<Connection>(library_, peer_, epoll_, link);
        lane.next = time + connect_seconds_;
      } else if (lane.connection != nullptr && time >= lane.next &&
                 lane.connection->state() == Connection::State::kConnecting) {
        lane.connection->abandon("no HTTP/2 settings came");
      }
    }
  }

  // Puts another in the place of every connection that is lost or draining, and hands the lost ones
  // to `lost(connection)` before they go. True where `connect` has something to do at once.
  template <class Lost>
  bool replace(double time, Lost lost) {
    bool at_once = false;
    for (Lane& lane : lanes_) {
      if (lane.connection == nullptr || !lane.connection->is_leaving()) continue;
      if (lane.connection->was_ready()) ++links_[lane.connection->link].reconnects;
      // The first attempt is at once, unless the last connection did not get to answer anything.
      const double delay = std::ldexp(kFirstRetrySeconds, std::min(lane.failures, 10) - 1);
      lane.next = lane.failures == 0 ? time : time + std::min(delay, kLongestRetrySeconds);
      at_once = at_once || lane.failures == 0;
      ++lane.failures;
      leaving_.push_back(std::move(lane.connection));
    }
    for (auto& connection : leaving_) {
      if (connection->state() != Connection::State::kLost) continue;
      lost(*connection);
      connection.reset();
    }
    leaving_.erase(std::remove(leaving_.begin(), leaving_.end(), nullptr), leaving_.end());
    return at_once;
  }

  std::size_t ready() const {
    return static_cast<std::size_t>(
        std::count_if(lanes_.begin(), lanes_.end(), [](const Lane& lane) {
          return lane.connection != nullptr &&
                 lane.connection->state() == Connection::State::kReady;
        }));
  }
  std::size_t size() const { return lanes_.size(); }

  // The ready connection with the fewest calls, taking turns among equals; null where all are full.
  Connection* least_loaded() {
    Connection* best = nullptr;
    std::size_t at = turn_;
    for (std::size_t i = 0; i < lanes_.size(); ++i, ++at) {
      if (at >= lanes_.size()) at = 0;
      Connection* connection = lanes_[at].connection.get();
      if (connection == nullptr || !connection->has_room()) continue;
      if (best == nullptr || connection->open_streams() < best->open_streams()) best = connection;
    }
    if (best != nullptr) turn_ = best->link + 1;
    return best;
  }

  void count_call(const Connection& connection) { ++links_[connection.link].calls; }

  // An answer came: the next loss is one of a server that works.
  void count_answer(const Connection& connection) { lanes_[connection.link].failures = 0; }

  // When `connect` has something to do next, if no connection changes before.
  double next_time() const {
    double next = kNever;
    for (const Lane& lane : lanes_)
      if (lane.connection == nullptr || lane.connection->state() == Connection::State::kConnecting)
        next = std::min(next, lane.next);
    return next;
  }

  const Link* links() const { return links_.data(); }

  // Times start over.
  void restart(double time) {
    for (Lane& lane : lanes_) {
      lane.next -= time;
      lane.failures = 0;
    }
  }

 private:
  struct Lane {
    std::unique_ptr<Connection> connection;
    double next = 0.0;  // when to connect, or when connecting has taken too long
    int failures = 0;   // since a call was answered
  };

  static constexpr double kFirstRetrySeconds = 0.05;
  static constexpr double kLongestRetrySeconds = 1.0;

  const nghttp2::Library& library_;
  const Peer& peer_;
  const int epoll_;
  const double connect_seconds_;
  std::vector<Lane> lanes_;
  std::vector<std::unique_ptr<Connection>> leaving_;
  std::vector<Link> links_;
  std::size_t turn_ = 0;
};

}  // namespace sharded_infer::load
