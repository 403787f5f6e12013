// What libnghttp2 calls: each finds its connection or call and passes on.
#pragma once
#include "server.h"

namespace sharded_infer::transport {

struct Callbacks {
  static nghttp2::Callbacks* make(const nghttp2::Library& library) {
    nghttp2::Callbacks* callbacks = nullptr;
    library.callbacks_new(&callbacks);
    library.set_on_begin_headers(callbacks, begin_headers);
    library.set_on_header(callbacks, header);
    library.set_on_data(callbacks, data);
    library.set_on_frame_recv(callbacks, frame_came);
    library.set_on_frame_send(callbacks, frame_sent);
    library.set_on_stream_close(callbacks, stream_closed);
    return callbacks;
  }

  static Call* call_of(Connection* connection, std::int32_t stream) {
    const nghttp2::Library& library = connection->server->http2_;
    return static_cast<Call*>(library.stream_user(connection->session, stream));
  }

  static int begin_headers(nghttp2::Session*, const nghttp2::Frame* frame, void* user) {
    auto* connection = static_cast<Connection*>(user);
    connection->greeted = true;
    // A stream that has a call already sends trailers.
    if (call_of(connection, frame->header.stream_id) == nullptr)
      connection->server->open_call(connection, frame->header.stream_id);
    return 0;
  }

  static int header(nghttp2::Session*, const nghttp2::Frame* frame, const std::uint8_t* name,
                    std::size_t name_bytes, const std::uint8_t* value, std::size_t value_bytes,
                    std::uint8_t, void* user) {
    auto* connection = static_cast<Connection*>(user);
    Call* call = call_of(connection, frame->header.stream_id);
    if (call == nullptr) return 0;
    RequestHead& head = call->head;
    head.bytes += name_bytes + value_bytes + 32;
    const auto most = std::size_t(connection->server->settings_.max_header_bytes);
    // Twice the limit are still refused with words; more only takes time.
    if (head.bytes > 2 * most) return nghttp2::kResetStream;
    if (head.bytes > most || call->has_head) return 0;
    head.add({reinterpret_cast<const char*>(name), name_bytes},
             {reinterpret_cast<const char*>(value), value_bytes});
    return 0;
  }

  static int data(nghttp2::Session*, std::uint8_t, std::int32_t stream, const std::uint8_t* data,
                  std::size_t bytes, void* user) {
    auto* connection = static_cast<Connection*>(user);
    Server* server = connection->server;
    server->http2_.consume_connection(connection->session, bytes);
    Call* call = call_of(connection, stream);
    if (call == nullptr || call->refused || call->finished)
      server->http2_.consume_stream(connection->session, stream, bytes);
    else
      server->data_came(call, data, bytes);
    return 0;
  }

  static int frame_came(nghttp2::Session*, const nghttp2::Frame* frame, void* user) {
    auto* connection = static_cast<Connection*>(user);
    Server* server = connection->server;
    connection->greeted = true;
    const nghttp2::FrameHeader& header = frame->header;
    switch (header.type) {
      case nghttp2::kHeaders:
      case nghttp2::kData: {
        if (header.type == nghttp2::kData && header.bytes == 0 &&
            !(header.flags & nghttp2::kEndStream))
          server->count_empty_frame(connection);
        Call* call = call_of(connection, header.stream_id);
        if (call == nullptr) return 0;
        if (header.type == nghttp2::kHeaders && !call->has_head) server->headers_came(call);
        if (header.flags & nghttp2::kEndStream) server->client_ended(call);
        return 0;
      }
      case nghttp2::kReset:
        server->client_reset(connection, call_of(connection, header.stream_id));
        return 0;
      case nghttp2::kPing:
        if (header.flags & nghttp2::kAck)
          connection->pinged = false;
        else
          server->client_pinged(connection);
        return 0;
      case nghttp2::kWindowUpdate:
        if (connection->window_updates > 0)
          --connection->window_updates;
        else
          server->count_empty_frame(connection);
        return 0;
      case nghttp2::kGoAway: return 0;
      default: server->count_empty_frame(connection); return 0;
    }
  }

  static int frame_sent(nghttp2::Session*, const nghttp2::Frame* frame, void* user) {
    auto* connection = static_cast<Connection*>(user);
    Server* server = connection->server;
    const nghttp2::FrameHeader& header = frame->header;
    if (header.type == nghttp2::kHeaders || header.type == nghttp2::kData)
      connection->ping_strikes = 0;
    if (header.type == nghttp2::kData) connection->window_updates += 2;
    if (header.type == nghttp2::kHeaders && header.flags & nghttp2::kEndStream) {
      // The rest of the request is not wanted. Submitted with the answer, the reset would overtake
      // it.
      const Call* call = call_of(connection, header.stream_id);
      if (call != nullptr && !call->half_closed)
        server->http2_.submit_rst_stream(connection->session, 0, header.stream_id,
                                         nghttp2::kNoError);
    }
    // Resets that the client provoked count as its own.
    if (header.type == nghttp2::kReset &&
        reinterpret_cast<const nghttp2::ResetFrame*>(frame)->error != nghttp2::kNoError)
      server->count_reset(connection);
    return 0;
  }

  static int stream_closed(nghttp2::Session*, std::int32_t stream, std::uint32_t, void* user) {
    auto* connection = static_cast<Connection*>(user);
    Call* call = call_of(connection, stream);
    if (call != nullptr) connection->server->forget(call);
    return 0;
  }

  // The bytes of a call's answers, then its trailers.
  static ssize_t read_answer(nghttp2::Session* session, std::int32_t stream, std::uint8_t* to,
                             std::size_t most, std::uint32_t* flags, nghttp2::DataSource* source,
                             void* user) {
    auto* call = static_cast<Call*>(source->pointer);
    auto* connection = static_cast<Connection*>(user);
    std::size_t copied = 0;
    while (call->first_answer != nullptr && copied < most) {
      Answer* answer = call->first_answer;
      const std::size_t part = std::min<std::size_t>(most - copied, answer->bytes - answer->sent);
      std::memcpy(to + copied, answer->data() + answer->sent, part);
      copied += part;
      answer->sent += std::uint32_t(part);
      if (answer->sent < answer->bytes) break;
      call->first_answer = answer->next;
      if (answer->next == nullptr) call->last_answer = nullptr;
      std::free(answer);
      connection->server->answer_was_sent(call);
    }
    connection->count(&Usage::answer_bytes, -std::int64_t(copied));
    connection->server->answer_bytes_ -= std::int64_t(copied);
    if (copied > 0) connection->moved = connection->server->now_;
    if (call->first_answer == nullptr && call->finished) {
      *flags |= nghttp2::kEndOfData | nghttp2::kNoEndStream;
      connection->server->submit_trailers(call, session, stream);
    } else if (copied == 0) {
      return nghttp2::kDeferred;
    }
    return ssize_t(copied);
  }
};

}  // namespace sharded_infer::transport
