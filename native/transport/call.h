// One call: a stream of HTTP/2 from its headers to its trailers, or a request of HTTP/1.1.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>

#include "request_head.h"

namespace sharded_infer::transport {

struct Connection;

constexpr std::size_t kKeptBytes = 1024;

// An answer: in HTTP/2 a message after gRPC's five bytes, in HTTP/1.1 the lines of a
// head (http1_answer.h), then the body.
struct Answer {
  Answer* next;
  std::uint32_t bytes;
  std::uint32_t sent;
  std::size_t head_bytes;
  std::uint8_t* data() { return reinterpret_cast<std::uint8_t*>(this + 1); }

  static Answer* allocate(std::size_t bytes) {
    void* memory = std::malloc(sizeof(Answer) + bytes);
    if (memory == nullptr) throw std::bad_alloc();
    return new (memory) Answer{nullptr, std::uint32_t(bytes), 0, 0};
  }
  // The message is not written yet: it follows the five bytes.
  static Answer* make_room(std::uint32_t message_bytes) {
    Answer* answer = allocate(5 + std::size_t(message_bytes));
    std::uint8_t* to = answer->data();
    to[0] = 0;
    for (int at = 0; at < 4; ++at) to[1 + at] = std::uint8_t(message_bytes >> (24 - 8 * at));
    return answer;
  }
  static Answer* make(const std::uint8_t* message, std::uint32_t message_bytes) {
    Answer* answer = make_room(message_bytes);
    if (message_bytes != 0) std::memcpy(answer->data() + 5, message, message_bytes);
    return answer;
  }
  static Answer* make_http(std::string_view lines, std::string_view body) {
    Answer* answer = allocate(lines.size() + body.size());
    answer->head_bytes = lines.size();
    std::memcpy(answer->data(), lines.data(), lines.size());
    if (!body.empty()) std::memcpy(answer->data() + lines.size(), body.data(), body.size());
    return answer;
  }
  static void free_all(Answer* answer) {
    while (answer != nullptr) {
      Answer* next = answer->next;
      std::free(answer);
      answer = next;
    }
  }
};

// How a call ends: gRPC's status code, and words and trailing metadata where there are any.
// HTTP/1.1 has it only without an answer, as an error.
struct Ending {
  std::int32_t code = 0;
  std::string words;             // not encoded yet
  std::string trailers;          // as RequestHead::others
  double retry_seconds = -1.0;   // until the client should call again; negative: nothing is said
  std::int32_t http_status = 0;  // 0: that of the code
};

struct Call {
  std::uint64_t id = 0;  // slot and generation
  Connection* connection = nullptr;
  Call* before = nullptr;  // of the connection, in order of arrival
  Call* after = nullptr;
  std::int32_t stream = 0;
  bool has_head = false;     // all of its headers have come
  bool refused = false;      // what comes is thrown away
  bool half_closed = false;  // the client sends no more
  bool expected = false;     // a predict call that is admitted, and not whole yet
  bool handed = false;       // Python has it, and is told of its end
  bool cancelled = false;    // it has been told
  bool answered = false;     // the response's headers are submitted
  bool finished = false;     // `ending` is what the trailers say
  RequestHead head;
  double began = 0.0;  // when its client may have sent it
  double deadline = kForever;
  double message_deadline = 0.0;

  // The message that is being read.
  std::uint8_t prefix[5];
  std::uint8_t prefix_bytes = 0;
  std::uint32_t wanted = 0, got = 0, capacity = 0;
  std::uint8_t* message = nullptr;
  std::int32_t events = 0;  // that were handed over
  // Of a stream: messages that are handed over and not answered, since when there is none, and
  // bytes left unread for them.
  std::int64_t open_messages = 0;
  double silent_since = 0.0;
  std::string unread;

  Answer* first_answer = nullptr;
  Answer* last_answer = nullptr;
  Ending ending;

  void clear() {
    std::free(message);
    Answer::free_all(first_answer);
    message = nullptr;
    first_answer = last_answer = nullptr;
    before = after = nullptr;
    has_head = refused = half_closed = expected = handed = cancelled = answered = finished = false;
    head.clear();
    // It will be another call's memory: a long text is not kept for that.
    for (std::string* text : {&head.path, &head.authorization, &head.others, &unread})
      if (text->capacity() > kKeptBytes) std::string().swap(*text);
    deadline = kForever;
    prefix_bytes = 0;
    wanted = got = capacity = 0;
    events = 0;
    open_messages = 0;
    unread.clear();
    ending = Ending();
  }
  void add(Answer* answer) {
    (last_answer == nullptr ? first_answer : last_answer->next) = answer;
    last_answer = answer;
  }
};

}  // namespace sharded_infer::transport
