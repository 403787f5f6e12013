// The part of libnghttp2's interface that is used, as its own header declares it in every 1.x.
//
// The library is looked for when a server or a load is made, not when this is compiled or loaded:
// neither a build nor the other commands need it. With SHARDED_INFER_LINKED_NGHTTP2 it is part of
// this library (setup.py).
#pragma once
#include <sys/types.h>

#include <cstddef>
#include <cstdint>

#include "opened_library.h"

namespace sharded_infer::nghttp2 {

struct Session;    // nghttp2_session
struct Callbacks;  // nghttp2_session_callbacks

struct Header {  // nghttp2_nv
  const std::uint8_t* name;
  const std::uint8_t* value;
  std::size_t name_bytes;
  std::size_t value_bytes;
  std::uint8_t flags;
};

union DataSource {  // nghttp2_data_source
  int fd;
  void* pointer;
};

using ReadData = ssize_t (*)(Session*, std::int32_t stream_id, std::uint8_t* to, std::size_t bytes,
                             std::uint32_t* flags, DataSource*, void* user);

struct DataProvider {  // nghttp2_data_provider
  DataSource source;
  ReadData read;
};

struct FrameHeader {  // nghttp2_frame_hd
  std::size_t bytes;
  std::int32_t stream_id;
  std::uint8_t type;
  std::uint8_t flags;
  std::uint8_t reserved;
};

// nghttp2_frame, a union whose members all begin with the header: that is read, and of HEADERS what
// kind they are (RFC 9113 has requests, responses and trailers), of RST_STREAM the error.
struct Frame {
  FrameHeader header;
};

struct ResetFrame {  // nghttp2_rst_stream
  FrameHeader header;
  std::uint32_t error;
};

struct GoAwayFrame {  // nghttp2_goaway
  FrameHeader header;
  std::int32_t last_stream;
  std::uint32_t error;
};

struct Setting {  // nghttp2_settings_entry
  std::int32_t id;
  std::uint32_t value;
};

using OnFrameHeader = int (*)(Session*, const FrameHeader*, void* user);
using OnFrameNotSent = int (*)(Session*, const Frame*, int error, void* user);
using OnFrame = int (*)(Session*, const Frame*, void* user);
using OnHeader = int (*)(Session*, const Frame*, const std::uint8_t* name, std::size_t name_bytes,
                         const std::uint8_t* value, std::size_t value_bytes, std::uint8_t flags,
                         void* user);
using OnData = int (*)(Session*, std::uint8_t flags, std::int32_t stream_id,
                       const std::uint8_t* data, std::size_t bytes, void* user);
using OnStreamClose = int (*)(Session*, std::int32_t stream_id, std::uint32_t error, void* user);

enum HeaderFlag : std::uint8_t { kNoIndex = 1, kNoCopyName = 2, kNoCopyValue = 4 };
enum FrameType : std::uint8_t {
  kData = 0,
  kHeaders = 1,
  kReset = 3,
  kSettings = 4,
  kPing = 6,
  kGoAway = 7,
  kWindowUpdate = 8,
};
enum FrameFlag : std::uint8_t { kEndStream = 1, kAck = 1 };
enum SettingId : std::int32_t {
  kEnablePush = 2,
  kMaxConcurrentStreams = 3,
  kInitialWindow = 4,
  kMaxFrameSize = 5,
  kMaxHeaderListSize = 6,
};
enum DataFlag : std::uint32_t { kEndOfData = 1, kNoEndStream = 2 };
// What a callback answers (nghttp2_error): the stream is reset; there is no data yet; the
// connection is of no use.
enum CallbackResult : int { kResetStream = -521, kDeferred = -508, kCallbackFailed = -902 };

// Error codes of HTTP/2 itself (RFC 9113, section 7).
enum Http2Error : std::uint32_t {
  kNoError = 0,
  kRefusedStream = 7,
  kCancel = 8,
  kEnhanceYourCalm = 11,
  kInadequateSecurity = 12,
};

struct Options;  // nghttp2_option

struct Info {  // nghttp2_info
  int age;
  int number;  // 0x013400 is 1.52.0
  const char* text;
};

#ifdef SHARDED_INFER_LINKED_NGHTTP2
#define FIND SHARDED_INFER_LINKED
#define FIND_IF_THERE SHARDED_INFER_LINKED
#else
#define FIND(symbol) opened.find(#symbol)
#define FIND_IF_THERE(symbol) opened.find_if_there(#symbol)
#endif

// Making it throws std::runtime_error where the library is not installed.
struct Library {
#ifdef SHARDED_INFER_LINKED_NGHTTP2
  static constexpr bool kIsLinked = true;
#else
  static constexpr bool kIsLinked = false;
  OpenedLibrary opened{"libnghttp2.so.14"};
#endif
  int (*callbacks_new)(Callbacks**) = FIND(nghttp2_session_callbacks_new);
  void (*callbacks_del)(Callbacks*) = FIND(nghttp2_session_callbacks_del);
  void (*set_on_frame_recv)(Callbacks*,
                            OnFrame) = FIND(nghttp2_session_callbacks_set_on_frame_recv_callback);
  void (*set_on_header)(Callbacks*,
                        OnHeader) = FIND(nghttp2_session_callbacks_set_on_header_callback);
  void (*set_on_data)(Callbacks*,
                      OnData) = FIND(nghttp2_session_callbacks_set_on_data_chunk_recv_callback);
  void (*set_on_stream_close)(Callbacks*, OnStreamClose) =
      FIND(nghttp2_session_callbacks_set_on_stream_close_callback);
  void (*set_on_begin_headers)(Callbacks*, OnFrame) =
      FIND(nghttp2_session_callbacks_set_on_begin_headers_callback);
  void (*set_on_begin_frame)(Callbacks*, OnFrameHeader) =
      FIND(nghttp2_session_callbacks_set_on_begin_frame_callback);
  void (*set_on_frame_send)(Callbacks*,
                            OnFrame) = FIND(nghttp2_session_callbacks_set_on_frame_send_callback);
  void (*set_on_frame_not_send)(Callbacks*, OnFrameNotSent) =
      FIND(nghttp2_session_callbacks_set_on_frame_not_send_callback);
  int (*options_new)(Options**) = FIND(nghttp2_option_new);
  void (*options_del)(Options*) = FIND(nghttp2_option_del);
  void (*no_auto_window_update)(Options*, int) = FIND(nghttp2_option_set_no_auto_window_update);
  void (*no_closed_streams)(Options*, int) = FIND(nghttp2_option_set_no_closed_streams);
  int (*client_with_options)(Session**, const Callbacks*, void* user,
                             const Options*) = FIND(nghttp2_session_client_new2);
  int (*server_new)(Session**, const Callbacks*, void* user,
                    const Options*) = FIND(nghttp2_session_server_new2);
  int (*submit_response)(Session*, std::int32_t stream_id, const Header*, std::size_t count,
                         const DataProvider*) = FIND(nghttp2_submit_response);
  int (*submit_trailer)(Session*, std::int32_t stream_id, const Header*,
                        std::size_t count) = FIND(nghttp2_submit_trailer);
  int (*resume_data)(Session*, std::int32_t stream_id) = FIND(nghttp2_session_resume_data);
  int (*submit_ping)(Session*, std::uint8_t flags,
                     const std::uint8_t* opaque) = FIND(nghttp2_submit_ping);
  int (*submit_notice)(Session*) = FIND(nghttp2_submit_shutdown_notice);
  int (*submit_goaway)(Session*, std::uint8_t flags, std::int32_t last_stream_id,
                       std::uint32_t error, const std::uint8_t* data,
                       std::size_t bytes) = FIND(nghttp2_submit_goaway);
  std::int32_t (*last_stream)(Session*) = FIND(nghttp2_session_get_last_proc_stream_id);
  int (*set_stream_user)(Session*, std::int32_t stream_id,
                         void* user) = FIND(nghttp2_session_set_stream_user_data);
  int (*consume_connection)(Session*, std::size_t bytes) = FIND(nghttp2_session_consume_connection);
  int (*consume_stream)(Session*, std::int32_t stream_id,
                        std::size_t bytes) = FIND(nghttp2_session_consume_stream);
  // Null in a library that has not got them: the caller decides whether that will do.
  void (*reset_rate_limit)(Options*, std::uint64_t burst, std::uint64_t rate) =
      FIND_IF_THERE(nghttp2_option_set_stream_reset_rate_limit);
  void (*max_continuations)(Options*,
                            std::size_t) = FIND_IF_THERE(nghttp2_option_set_max_continuations);
  const Info* (*version)(int least) = FIND(nghttp2_version);
  void (*session_del)(Session*) = FIND(nghttp2_session_del);
  int (*submit_settings)(Session*, std::uint8_t flags, const Setting*,
                         std::size_t count) = FIND(nghttp2_submit_settings);
  int (*set_local_window)(Session*, std::uint8_t flags, std::int32_t stream_id,
                          std::int32_t bytes) = FIND(nghttp2_session_set_local_window_size);
  std::int32_t (*submit_request)(Session*, const void* priority, const Header*, std::size_t count,
                                 const DataProvider*,
                                 void* stream_user) = FIND(nghttp2_submit_request);
  int (*submit_rst_stream)(Session*, std::uint8_t flags, std::int32_t stream_id,
                           std::uint32_t error) = FIND(nghttp2_submit_rst_stream);
  ssize_t (*mem_recv)(Session*, const std::uint8_t* data,
                      std::size_t bytes) = FIND(nghttp2_session_mem_recv);
  ssize_t (*mem_send)(Session*, const std::uint8_t** data) = FIND(nghttp2_session_mem_send);
  int (*want_read)(Session*) = FIND(nghttp2_session_want_read);
  int (*want_write)(Session*) = FIND(nghttp2_session_want_write);
  std::size_t (*queued_frames)(Session*) = FIND(nghttp2_session_get_outbound_queue_size);
  std::uint32_t (*remote_setting)(Session*,
                                  std::int32_t id) = FIND(nghttp2_session_get_remote_settings);
  void* (*stream_user)(Session*,
                       std::int32_t stream_id) = FIND(nghttp2_session_get_stream_user_data);
  int (*terminate)(Session*, std::uint32_t error) = FIND(nghttp2_session_terminate_session);
  const char* (*error_text)(int error) = FIND(nghttp2_strerror);
};

#undef FIND
#undef FIND_IF_THERE

}  // namespace sharded_infer::nghttp2
