// The messages of a call, read from its DATA frames.
#include <algorithm>

#include "server.h"

namespace sharded_infer::transport {

namespace {

constexpr std::size_t kFirstBytes = 16 << 10;
// A message may be allocated at once up to this size; beyond, memory grows with what comes.
constexpr std::size_t kAllocatedAtOnce = 128 << 10;
// Above this time a body of HTTP/1.1 may be dropped where memory is short.
constexpr double kSlowSeconds = 10.0;

}  // namespace

void Server::data_came(Call* call, const std::uint8_t* data, std::size_t bytes) {
  if (is_stream(call)) return stream_data_came(call, data, bytes);
  const std::size_t read = read_message(call, data, bytes);
  if (call->refused) return;
  if (read < bytes) return refuse(call, {12, "expected one message, got more"});
  if (call->prefix_bytes < 5 || call->got < call->wanted)
    call->connection->session->consumed(call, bytes);
}

void Server::stream_data_came(Call* call, const std::uint8_t* data, std::size_t bytes) {
  // Bytes that are left unread hold the client's window.
  if (!call->unread.empty()) {
    call->unread.append(reinterpret_cast<const char*>(data), bytes);
    return;
  }
  std::size_t at = 0;
  const bool reads = !draining_streams_ || !is_stream_of_calls(call);
  while (reads && at < bytes && !call->refused &&
         call->open_messages < settings_.max_stream_messages) {
    at += read_message(call, data + at, bytes - at);
    if (call->prefix_bytes == 5 && call->got == call->wanted) message_came(call);
  }
  if (call->refused) return;
  call->connection->session->consumed(call, at);
  call->unread.append(reinterpret_cast<const char*>(data + at), bytes - at);
}

void Server::read_on(Call* call) {
  if (call->refused || call->finished) return;
  if (call->unread.empty()) return end_answered_stream(call);
  const std::string left = std::move(call->unread);
  call->unread.clear();
  stream_data_came(call, reinterpret_cast<const std::uint8_t*>(left.data()), left.size());
  touch(call->connection);
  if (call->half_closed && call->unread.empty() && !call->refused) client_ended(call);
  end_answered_stream(call);
}

// Reads what belongs to the message that has begun; returns how many bytes that was.
std::size_t Server::read_message(Call* call, const std::uint8_t* data, std::size_t bytes) {
  std::size_t at = 0;
  while (at < bytes && call->prefix_bytes < 5) {
    call->prefix[call->prefix_bytes++] = data[at++];
    if (call->prefix_bytes < 5) continue;
    const std::uint8_t* prefix = call->prefix;
    call->wanted = std::uint32_t(prefix[1]) << 24 | std::uint32_t(prefix[2]) << 16 |
                   std::uint32_t(prefix[3]) << 8 | prefix[4];
    if (prefix[0] > 1 || (prefix[0] == 1 && call->head.encoding == kIdentity)) {
      refuse(call, {prefix[0] > 1 ? 3 : 13,
                    "the message is marked as compressed, and grpc-encoding names nothing"});
      return bytes;
    }
    if (std::int64_t(call->wanted) > settings_.max_message_bytes) {
      refuse(call, {8, "the message has " + plural(call->wanted, "byte") + ", at most " +
                           std::to_string(settings_.max_message_bytes) + " are allowed"});
      return bytes;
    }
  }
  const std::size_t part = std::min<std::size_t>(bytes - at, call->wanted - call->got);
  return take_in(call, data + at, part) ? at + part : bytes;
}

// Adds bytes to a call's message; refuses the call, and returns false, where too much is held.
bool Server::take_in(Call* call, const std::uint8_t* data, std::size_t bytes) {
  if (bytes == 0) return true;
  if (!reserve(call, call->got + bytes)) return false;
  std::memcpy(call->message + call->got, data, bytes);
  call->got += std::uint32_t(bytes);
  return true;
}

// Makes room in the call's message; refuses the call where too much is held.
bool Server::reserve(Call* call, std::size_t bytes) {
  if (bytes <= call->capacity) return true;
  std::size_t capacity =
      std::max<std::size_t>({bytes, kFirstBytes, 2 * std::size_t(call->capacity)});
  if (call->wanted <= kAllocatedAtOnce) capacity = call->wanted;
  capacity = std::min<std::size_t>(capacity, call->wanted);
  const auto more = std::int64_t(capacity) - call->capacity;
  Connection* connection = call->connection;
  const auto fits = [&] {
    return connection->fits(&Usage::held_bytes, more,
                            settings_.max_held_bytes - held_bytes_ - more);
  };
  if (!fits() && !(connection->is_http1 && drop_slow_body(connection) && fits())) {
    refuse(call, {8, "too many bytes of requests are held; try again", retry_of(connection)});
    return false;
  }
  auto* memory = static_cast<std::uint8_t*>(std::realloc(call->message, capacity));
  if (memory == nullptr) {
    refuse(call, {8, "no memory is left for the message"});
    return false;
  }
  held_bytes_ += more;
  connection->count(&Usage::held_bytes, more);
  call->message = memory;
  call->capacity = std::uint32_t(capacity);
  return true;
}

void Server::drop_message(Call* call) {
  std::free(call->message);
  held_bytes_ -= call->capacity;
  call->connection->count(&Usage::held_bytes, -std::int64_t(call->capacity));
  call->message = nullptr;
  call->capacity = 0;
}

// Ends the connection whose body has been coming for longest, where that is long; whether there is
// one beside this.
bool Server::drop_slow_body(const Connection* other) {
  for (Connection* one = idle_first_; one != nullptr; one = one->idle_after) {
    Call* call = one->first_call;
    if (one == other || !one->is_http1 || one->dead || call == nullptr || call->handed ||
        call->finished || now_ < one->idle_since + kSlowSeconds)
      continue;
    ++counters_.bodies_too_late;
    drop_message(call);
    call->refused = true;
    close_soon(one);
    return true;
  }
  return false;
}

void Server::message_came(Call* call) {
  ++call->open_messages;
  hand(call, kMessage);
  call->prefix_bytes = 0;
  call->wanted = call->got = 0;
}

}  // namespace sharded_infer::transport
