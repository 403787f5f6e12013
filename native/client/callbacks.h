// What libnghttp2 calls: each finds its connection and passes on. None may throw: C is below them.
#pragma once
#include "connection.h"

namespace sharded_infer::client {

constexpr std::size_t kFrameHeaderBytes = 9;

struct Callbacks {
  static nghttp2::Callbacks* make(const nghttp2::Library& library) {
    nghttp2::Callbacks* callbacks = nullptr;
    library.callbacks_new(&callbacks);
    library.set_on_begin_frame(callbacks, begin_frame);
    library.set_on_header(callbacks, header);
    library.set_on_data(callbacks, data);
    library.set_on_frame_recv(callbacks, frame_came);
    library.set_on_frame_send(callbacks, frame_sent);
    library.set_on_frame_not_send(callbacks, frame_not_sent);
    library.set_on_stream_close(callbacks, stream_closed);
    return callbacks;
  }

  // The bytes of a request.
  static ssize_t read_body(nghttp2::Session*, std::int32_t stream, std::uint8_t* to,
                           std::size_t room, std::uint32_t* flags, nghttp2::DataSource*,
                           void* user) {
    Call* call = static_cast<Connection*>(user)->find(stream);
    if (call == nullptr) return nghttp2::kResetStream;
    const std::size_t read = call->read_body(to, room);
    if (call->is_sent_whole()) *flags |= nghttp2::kEndOfData;
    return ssize_t(read);
  }

 private:
  static int broken(Connection* connection, const char* how) {
    connection->broken_ = how;
    return nghttp2::kCallbackFailed;
  }

  // Frames that bring nothing cost the peer little. What is sent lets it send windows; data that
  // came lets it send more, as a frame may be nothing but padding.
  static int begin_frame(nghttp2::Session*, const nghttp2::FrameHeader* header, void* user) {
    auto* connection = static_cast<Connection*>(user);
    connection->unknown_bytes_ -= std::int64_t(kFrameHeaderBytes + header->bytes);
    if (header->type == nghttp2::kHeaders && connection->find(header->stream_id) != nullptr)
      return 0;
    std::int64_t* allowed = header->type == nghttp2::kData           ? &connection->data_frames_
                            : header->type == nghttp2::kWindowUpdate ? &connection->window_updates_
                                                                     : nullptr;
    if (allowed != nullptr && *allowed > 0) {
      --*allowed;
      return 0;
    }
    if (connection->useless_frames_.take(connection->now_) == 0.0) return 0;
    return broken(connection, "the peer sends too many frames that bring nothing");
  }

  static int header(nghttp2::Session*, const nghttp2::Frame* frame, const std::uint8_t* name,
                    std::size_t name_bytes, const std::uint8_t* value, std::size_t value_bytes,
                    std::uint8_t, void* user) {
    auto* connection = static_cast<Connection*>(user);
    Call* call = connection->find(frame->header.stream_id);
    if (call == nullptr) return 0;
    // As HTTP/2 counts a list of headers; interim answers (1xx) count too.
    call->header_bytes += name_bytes + value_bytes + 32;
    if (call->header_bytes > std::size_t(connection->shared_.settings.max_header_bytes))
      return broken(connection, "the peer sends more headers than are allowed");
    call->add_header({reinterpret_cast<const char*>(name), name_bytes},
                     {reinterpret_cast<const char*>(value), value_bytes});
    return 0;
  }

  static int data(nghttp2::Session*, std::uint8_t, std::int32_t stream, const std::uint8_t* data,
                  std::size_t bytes, void* user) {
    auto* connection = static_cast<Connection*>(user);
    Call* call = connection->find(stream);
    if (call == nullptr) return 0;
    ++connection->data_frames_;
    connection->take(call, data, bytes);
    return 0;
  }

  static int frame_came(nghttp2::Session*, const nghttp2::Frame* frame, void* user) {
    auto* connection = static_cast<Connection*>(user);
    const nghttp2::FrameHeader& header = frame->header;
    if (header.type == nghttp2::kGoAway) {
      connection->said_goaway(reinterpret_cast<const nghttp2::GoAwayFrame*>(frame)->last_stream);
    } else if ((header.type == nghttp2::kHeaders || header.type == nghttp2::kData) &&
               header.flags & nghttp2::kEndStream) {
      Call* call = connection->find(header.stream_id);
      if (call == nullptr) return 0;
      // The rest of a request whose answer has come.
      if (!call->is_sent_whole()) connection->reset(call->stream);
      connection->answered(call, nghttp2::kNoError);
    }
    return 0;
  }

  static int frame_sent(nghttp2::Session*, const nghttp2::Frame* frame, void* user) {
    // For the call and for the connection.
    if (frame->header.type == nghttp2::kData) static_cast<Connection*>(user)->window_updates_ += 2;
    return 0;
  }

  // A request that was still queued when the peer said GOAWAY.
  static int frame_not_sent(nghttp2::Session*, const nghttp2::Frame* frame, int, void* user) {
    auto* connection = static_cast<Connection*>(user);
    if (frame->header.type != nghttp2::kHeaders) return 0;
    for (Call* call : connection->calls) {
      if (call->stream != frame->header.stream_id) continue;
      connection->detach(call);
      connection->returned.push_back(call);
      break;
    }
    return 0;
  }

  static int stream_closed(nghttp2::Session*, std::int32_t stream, std::uint32_t error,
                           void* user) {
    auto* connection = static_cast<Connection*>(user);
    if (Call* call = connection->find(stream)) connection->answered(call, error);
    return 0;
  }
};

}  // namespace sharded_infer::client
