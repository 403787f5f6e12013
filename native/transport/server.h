// Carries calls between sockets and handlers: one I/O thread, no GIL.
//
//   events     the I/O thread collects what comes in a round of epoll, and hands it over at once
//   replies    handlers add them under a lock; only the first to find the I/O thread asleep wakes
//   it call ids   a slot and its generation, so that a late reply to a call that is gone finds
//   nothing
//
// What is held is bounded: bytes and calls by connection, by address and in all, connections by
// address and in all, and each step of a client by time.
#pragma once
#include <sys/epoll.h>
#include <sys/socket.h>

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "admission.h"
#include "call.h"
#include "connection.h"
#include "http1_session.h"
#include "http2_session.h"
#include "routes.h"
#include "settings.h"
#include "tls.h"

namespace sharded_infer::transport {

class Server {
 public:
  // Listens. Throws std::runtime_error where the port cannot be had or a library is missing.
  explicit Server(const Settings& settings);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  const Counters& counters() const { return counters_; }

  // The following are called by any thread.

  // Frees what events have.
  void give_back(const Event* events, int count);
  // Gives the `held` events back that `events` has, flushes, and waits for new ones. Returns their
  // number, 0 after the time, -1 when the server has ended.
  int fetch(Event* events, int held, int most, int milliseconds);
  // Answers a unary call, or sends a message of a stream.
  void respond(std::uint64_t call, Answer* answer, bool ends) {
    reply({call, answer, ends, nullptr}, held_ != this);
  }
  // Answers a request of HTTP/1.1, at the next `flush` or before. True if this thread must flush.
  bool respond_later(std::uint64_t call, Answer* answer) {
    reply({call, answer, true, nullptr}, false);
    return held_ != this;
  }
  // Ends a call with a status. `trailers` are as RequestHead::others.
  void finish(std::uint64_t call, std::int32_t code, std::string words, std::string trailers);
  // Answers a message of a stream of calls with an error, or ends the stream with its status if the
  // client asks for that.
  void refuse_message(std::uint64_t call, Answer* answer, std::int32_t code, std::string words);
  // The calling thread's replies to calls of this server wait for its `flush`: a woken I/O thread
  // takes the core at once, and would send each answer of a batch by itself.
  void hold_replies() { held_ = this; }
  void flush();
  void set_tokens(std::shared_ptr<const Tokens> tokens) {
    admission_.set_tokens(std::move(tokens));
  }
  // What an open unary method answers to this very message, without Python.
  void set_fixed_answer(std::int32_t method, std::string message, std::string answer);
  // Predict calls with less time than this are refused on their headers; it is of the calls that
  // were fetched by now.
  void set_backlog(double seconds) {
    backlog_ = seconds;
    known_calls_ = fetched_calls_.load();
  }
  // By how much a call that is not read yet may go before others with its deadline.
  void set_urgent_lead(double seconds) { urgent_lead_ = seconds; }
  // Refuses further streams of calls, reads no more of those that are open, and ends each once its
  // messages are answered.
  void drain_streams();
  // Leaves new connections to other processes with its sockets; returns when it has.
  void stop_accepting();
  // Accepts no more connections and no more calls; ends when the open ones are answered.
  void drain(double seconds);
  // Ends at once and closes what is open.
  void stop();
  const openssl::Library& crypto();

 private:
  friend class Http1Session;
  friend struct Http1Callbacks;
  friend class Http2Session;
  friend struct Http2Callbacks;
  struct Reply {
    std::uint64_t call;
    Answer* answer;  // null: only an ending
    bool ends;
    std::unique_ptr<Ending> ending;  // null: OK; of a message unless it `ends` the call
  };
  static constexpr int kGroups = 10;
  struct Listener {
    int descriptor;
    bool is_http1;
  };

  // server.cpp and connections.cpp
  void run();
  int await_ready(epoll_event* ready, int most);
  void wake();
  void reply(Reply made, bool wakes);
  void hand_over();
  // Lets the I/O thread read what clients are sending, while more comes: fewer and larger steps
  // cost less. For `fetch`, which holds the lock.
  void gather(std::unique_lock<std::mutex>& lock, int most);
  // Looks for events without sleeping, for a while. For `fetch`, which holds the lock.
  void look_out(std::unique_lock<std::mutex>& lock);
  void take_replies();
  void accept_all(const Listener& listener);
  bool make_descriptor_room(const Listener& listener);
  void fill_spares();
  void close_listeners();
  void admit_connection(int descriptor, const sockaddr_storage& from, bool is_http1);
  bool make_room(const Address* crowded, bool is_http1);
  bool make_probe_room();
  Connection* longest_waiting(const Address* address) const;
  void start_session(Connection* connection);
  void touch(Connection* connection);
  void bury_dead();
  void close_descriptor(int descriptor, bool has_said_goodbye);
  void read_lingering();
  void set_idle(Connection* connection, bool idle);
  void wait_anew(Connection* connection);

  // socket.cpp
  void readable(Connection* connection);
  bool shake_hands(Connection* connection);
  void write_out(Connection* connection);
  void watch(Connection* connection, bool writing);
  void close_soon(Connection* connection);

  // calls.cpp, messages.cpp and answers.cpp
  Call* open_call(Connection* connection, std::int32_t stream);
  Call* find_call(std::uint64_t id);
  bool is_stream(const Call* call) const;
  bool is_stream_of_calls(const Call* call) const;
  void admit_call(Call* call);
  bool admit_stream(Call* call);
  bool end_silent_stream();
  void leave_streams(const Call* call);
  void data_came(Call* call, const std::uint8_t* data, std::size_t bytes);
  void stream_data_came(Call* call, const std::uint8_t* data, std::size_t bytes);
  std::size_t read_message(Call* call, const std::uint8_t* data, std::size_t bytes);
  bool take_in(Call* call, const std::uint8_t* data, std::size_t bytes);
  bool comes_too_late(double timeout) const;
  void client_ended(Call* call);
  void hand_whole(Call* call);
  void read_on(Call* call);
  void end_answered_stream(Call* call);
  void message_came(Call* call);
  void refuse(Call* call, Refusal refusal);
  void answer(Call* call, Answer* answer);
  void end(Call* call, Ending ending);
  std::size_t read_answers(Call* call, std::uint8_t* to, std::size_t most);
  void answer_was_sent(Call* call);
  void forget(Call* call);
  void hand(Call* call, EventKind kind);
  void count_handed(Call* call, int change);
  void expect(Call* call, bool expected);
  bool reserve(Call* call, std::size_t bytes);
  void drop_message(Call* call);
  bool drop_slow_body(const Connection* other);
  // When a client of HTTP may ask again: it is told in seconds, and guesses else.
  static double retry_of(const Connection* connection) { return connection->is_http1 ? 1.0 : -1.0; }

  // upkeep.cpp
  void upkeep();
  void measure_answers();
  void drop_unread_answers();
  void look_after(Connection* connection);
  void expel(Connection* connection, bool calm, const char* words);
  void calm(Connection* connection, std::int64_t* counter, const char* words);

  Settings settings_;
  std::vector<Method> methods_;
  std::unordered_map<std::string, std::int32_t> method_by_path_;
  std::vector<Route> route_settings_;
  Routes routes_;
  std::int32_t first_route_ = 0;  // as a method
  std::unique_ptr<Http2> http2_;  // null: it has no listener of HTTP/2
  std::unique_ptr<openssl::Library> crypto_;
  std::unique_ptr<Tls> tls_, http_tls_;
  Admission admission_;
  std::vector<Listener> listeners_;
  int epoll_ = -1, wake_ = -1;
  std::vector<int> spares_;  // descriptors for when there are no others
  std::thread thread_;
  Counters counters_{};
  double now_ = 0.0;
  double looked_before_ = 0.0;  // what comes now came after that

  // Of the I/O thread.
  Connection* groups_[kGroups] = {};
  int next_group_ = 0;
  double next_upkeep_ = 0.0;
  Connection *idle_first_ = nullptr, *idle_last_ = nullptr;
  std::unordered_map<std::string, Address> addresses_;
  std::int64_t probes_ = 0;  // of the connections, those in places for probes
  std::unordered_map<std::string, TokenBucket> calmed_;  // addresses, and their new connections
  std::vector<Connection*> touched_, dead_;
  struct Lingering {
    int descriptor;
    double since;
    std::size_t left;  // bytes that may come
  };
  std::vector<Lingering> lingering_;
  std::vector<Call*> slots_;
  std::vector<std::uint32_t> generations_, free_slots_;
  std::vector<Call*> spare_calls_;
  std::vector<std::uint8_t> buffer_;
  std::vector<Event> fresh_;
  std::vector<Reply> taken_;
  std::vector<Call*> streams_;          // of calls; not those that have ended
  std::vector<std::uint64_t> read_on_;  // calls of which another message may be read
  std::int64_t handed_calls_ = 0;
  std::int64_t whole_calls_ = 0;     // unary calls that were handed over, since the start
  std::int64_t expected_calls_ = 0;  // predict calls that are admitted, and not whole yet
  std::int64_t handed_by_timeout_[kTimeoutClasses] = {};
  // Unary calls that were answered, and how many in the last second with many in progress at both
  // its ends.
  std::int64_t answered_ = 0, answered_before_ = 0;
  double answers_a_second_ = kForever;
  double next_rate_ = 0.0;
  bool was_busy_ = false;
  std::int64_t open_calls_ = 0;    // of connections that are not expelled
  std::int64_t answer_bytes_ = 0;  // of all connections
  bool refused_now_ = false;
  double next_notice_ = 0.0;
  double draining_since_ = 0.0;

  // Shared.
  static thread_local const Server* held_;  // whose replies wait for `flush`
  std::atomic<std::int64_t> held_bytes_{0};
  std::atomic<std::int64_t> untold_{0};  // calls that were given up, and nobody has fetched that
  std::atomic<double> backlog_{0.0};
  // Of `whole_calls_`, those that were fetched, and those that were when the backlog was set.
  std::atomic<std::int64_t> fetched_calls_{0}, known_calls_{0};
  std::atomic<double> urgent_lead_{0.0};
  std::atomic<int> processor_{-1};  // of the I/O thread
  std::atomic<bool> asleep_{false}, stopping_{false}, draining_{false};
  std::atomic<bool> draining_streams_{false};
  std::atomic<bool> accepts_{true}, is_accepting_{true};
  std::atomic<double> drain_seconds_{0.0};
  std::mutex events_lock_;
  std::condition_variable events_came_;
  std::vector<Event> events_;
  std::size_t events_taken_ = 0;
  std::atomic<std::int64_t> handed_{0};  // events, since the start
  int waiting_ = 0;
  bool gathering_ = false, looking_out_ = false;
  int lonely_ = 0;  // fetches in a row that gathered nothing
  bool ended_ = false;
  bool has_refused_ = false;  // since `fetch` last returned
  std::mutex replies_lock_;
  std::vector<Reply> replies_;
  std::atomic<bool> has_replies_{false};
  std::mutex fixed_lock_;
  std::map<std::pair<std::int32_t, std::string>, std::string> fixed_;
  std::atomic<std::uint64_t> fixed_methods_{0};  // a bit for each of the first 64 that have any
};

}  // namespace sharded_infer::transport
