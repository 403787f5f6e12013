// The protocol of a connection: HTTP/2 (http2_session.h) or HTTP/1.1 (http1_session.h).
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace sharded_infer::transport {

struct Call;

// Only the I/O thread uses it. A session tells the server what came of calls, and is told what
// they are answered.
class Session {
 public:
  Session() = default;
  virtual ~Session() = default;
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Takes what came; false: these bytes are not of this protocol.
  virtual bool read(const std::uint8_t* data, std::size_t bytes) = 0;
  // True if input is to be read now.
  virtual bool wants_read() const { return true; }
  // Appends what is to be sent, until `out` has about `most` bytes.
  virtual void write(std::string* out, std::size_t most) = 0;
  // All that was to be sent has been.
  virtual void written() {}
  // True if more waits for a client that takes nothing than its calls explain.
  virtual bool is_flooded() const { return false; }
  // True once nothing will be read or sent any more.
  virtual bool is_over() const = 0;

  // There is another message to send for a call, or its end.
  virtual void send(Call* call) = 0;
  // So much of a call's input need not be held back any more, and more may come.
  virtual void consumed(Call*, std::size_t) {}
  // A call is gone.
  virtual void forget(Call* call) = 0;
  // Timeouts and keepalive: once a second, more often while the server drains.
  virtual void look_after() = 0;
  // Sends a last word before the connection is closed; `calm`: the client asks too much.
  virtual void expel(bool calm, const char* words) = 0;
};

}  // namespace sharded_infer::transport
