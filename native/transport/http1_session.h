// A connection that speaks HTTP/1.1, by llhttp: one request at a time, in their order.
#pragma once
#include <cstdint>
#include <string>

#include "call.h"
#include "session.h"
#include "third_party/llhttp/llhttp.h"

namespace sharded_infer::transport {

struct Connection;
class Server;

class Http1Session final : public Session {
 public:
  explicit Http1Session(Connection* connection);

  bool read(const std::uint8_t* data, std::size_t bytes) override;
  bool wants_read() const override;
  void write(std::string* out, std::size_t most) override;
  void written() override;
  bool is_over() const override { return false; }
  void send(Call*) override {}
  void forget(Call* call) override;
  void look_after() override;
  void expel(bool, const char*) override {}

 private:
  friend struct Http1Callbacks;

  // Of a request, from its first byte to its answer.
  struct Request {
    double began = 0.0;        // when its first byte came; 0: it has not
    std::size_t received = 0;  // of the head, then of the body with its framing
    int spaces = 0;            // in its line
    bool has_line = false, has_head = false, is_complete = false;
    std::string target, name, value, coding;
    int headers = 0, hosts = 0;
    RequestHead head;  // until its call has it
    bool is_head = false, keeps_open = false, asks_to_go_on = false, has_body = false;
    std::int64_t max_body = 0;
    std::int64_t pieces = 0, body_bytes = 0;
    std::size_t discarded = 0;  // of the body, because nobody asked for it
    bool is_open = false;       // anyone may ask for it
    bool came_at_once = true;   // all of it with the end of its head
    bool closes = false;        // the connection, after its answer
  };

  void parse(const char* data, std::size_t bytes);
  void count_spaces(const char* data, std::size_t bytes);
  void header_came();
  int head_came();
  bool check_head();
  void admit();
  void body_came(const char* data, std::size_t bytes);
  void check_size();
  void request_came();
  bool fail(std::int32_t status, std::string words);
  void begin_answer(std::string* out);
  void end_request();

  Connection* const connection_;
  Server* const server_;
  llhttp_t parser_;
  Request request_;
  Call* call_ = nullptr;    // of the request, once its head has come
  std::string rest_;        // what came after it
  bool is_broken_ = false;  // where another request would begin is unknown
  bool is_last_ = false;    // no other request is answered
  bool tells_to_go_on_ = false;
  std::int32_t failed_ = 0;  // HTTP's status of what is wrong with the request
  std::string failure_;
};

}  // namespace sharded_infer::transport
