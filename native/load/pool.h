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
        places_(size),
        links_(size) {}

  template <class Action>
  void for_each(Action action) {
    for (Place& place : places_)
      if (place.connection != nullptr) action(*place.connection);
    for (const auto& connection : leaving_) action(*connection);
  }

  // Begins to connect what has no connection, once it may.
  void connect(double time) {
    for (std::size_t link = 0; link < places_.size(); ++link) {
      Place& place = places_[link];
      if (place.connection == nullptr && time >= place.next) {
        place.connection = std::make_unique<Connection>(library_, peer_, epoll_, link);
        place.next = time + connect_seconds_;
      } else if (place.connection != nullptr && time >= place.next &&
                 place.connection->state() == Connection::State::kConnecting) {
        place.connection->abandon("no HTTP/2 settings came");
      }
    }
  }

  // Puts another in the place of every connection that is lost or draining, and hands the lost ones
  // to `lost(connection)` before they go. True where `connect` has something to do at once.
  template <class Lost>
  bool replace(double time, Lost lost) {
    bool at_once = false;
    for (Place& place : places_) {
      if (place.connection == nullptr || !place.connection->is_leaving()) continue;
      if (place.connection->was_ready()) ++links_[place.connection->link].reconnects;
      // The first attempt is at once, unless the last connection did not get to answer anything.
      const double delay = std::ldexp(kFirstRetrySeconds, std::min(place.failures, 10) - 1);
      place.next = place.failures == 0 ? time : time + std::min(delay, kLongestRetrySeconds);
      at_once = at_once || place.failures == 0;
      ++place.failures;
      leaving_.push_back(std::move(place.connection));
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
        std::count_if(places_.begin(), places_.end(), [](const Place& place) {
          return place.connection != nullptr &&
                 place.connection->state() == Connection::State::kReady;
        }));
  }
  std::size_t size() const { return places_.size(); }

  // The ready connection with the fewest calls, taking turns among equals; null where all are full.
  Connection* least_loaded() {
    Connection* best = nullptr;
    std::size_t at = turn_;
    for (std::size_t i = 0; i < places_.size(); ++i, ++at) {
      if (at >= places_.size()) at = 0;
      Connection* connection = places_[at].connection.get();
      if (connection == nullptr || !connection->has_room()) continue;
      if (best == nullptr || connection->open_streams() < best->open_streams()) best = connection;
    }
    if (best != nullptr) turn_ = best->link + 1;
    return best;
  }

  void count_call(const Connection& connection) { ++links_[connection.link].calls; }

  // An answer came: the next loss is one of a server that works.
  void count_answer(const Connection& connection) { places_[connection.link].failures = 0; }

  // When `connect` has something to do next, if no connection changes before.
  double next_time() const {
    double next = kNever;
    for (const Place& place : places_)
      if (place.connection == nullptr ||
          place.connection->state() == Connection::State::kConnecting)
        next = std::min(next, place.next);
    return next;
  }

  const Link* links() const { return links_.data(); }

  // Times start over.
  void restart(double time) {
    for (Place& place : places_) {
      place.next -= time;
      place.failures = 0;
    }
  }

 private:
  struct Place {
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
  std::vector<Place> places_;
  std::vector<std::unique_ptr<Connection>> leaving_;
  std::vector<Link> links_;
  std::size_t turn_ = 0;
};

}  // namespace sharded_infer::load
