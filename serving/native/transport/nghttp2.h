// The part of libnghttp2's interface that is used, as its own header declares it in every 1.x.
//
// The library is looked for when a server or a load is made, not when this is compiled or loaded:
// neither a build nor the other commands need it. With SHARDED_INFER_LINKED_NGHTTP2 it is part of
// this library (setup.py).
#pragma once
#include <dlfcn.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

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

struct Library {
  int (*callbacks_new)(Callbacks**);
  void (*callbacks_del)(Callbacks*);
  void (*set_on_frame_recv)(Callbacks*, OnFrame);
  void (*set_on_header)(Callbacks*, OnHeader);
  void (*set_on_data)(Callbacks*, OnData);
  void (*set_on_stream_close)(Callbacks*, OnStreamClose);
  void (*set_on_begin_headers)(Callbacks*, OnFrame);
  void (*set_on_begin_frame)(Callbacks*, OnFrameHeader);
  void (*set_on_frame_send)(Callbacks*, OnFrame);
  void (*set_on_frame_not_send)(Callbacks*, OnFrameNotSent);
  int (*options_new)(Options**);
  void (*options_del)(Options*);
  void (*no_auto_window_update)(Options*, int);
  void (*no_closed_streams)(Options*, int);
  int (*client_new)(Session**, const Callbacks*, void* user);
  int (*client_with_options)(Session**, const Callbacks*, void* user, const Options*);
  int (*server_new)(Session**, const Callbacks*, void* user, const Options*);
  int (*submit_response)(Session*, std::int32_t stream_id, const Header*, std::size_t count,
                         const DataProvider*);
  int (*submit_trailer)(Session*, std::int32_t stream_id, const Header*, std::size_t count);
  int (*resume_data)(Session*, std::int32_t stream_id);
  int (*submit_ping)(Session*, std::uint8_t flags, const std::uint8_t* opaque);
  int (*submit_notice)(Session*);
  int (*submit_goaway)(Session*, std::uint8_t flags, std::int32_t last_stream_id,
                       std::uint32_t error, const std::uint8_t* data, std::size_t bytes);
  std::int32_t (*last_stream)(Session*);
  int (*set_stream_user)(Session*, std::int32_t stream_id, void* user);
  int (*consume_connection)(Session*, std::size_t bytes);
  int (*consume_stream)(Session*, std::int32_t stream_id, std::size_t bytes);
  // Null in a library that has not got them: the caller decides whether that will do.
  void (*reset_rate_limit)(Options*, std::uint64_t burst, std::uint64_t rate);
  void (*max_continuations)(Options*, std::size_t);
  const Info* (*version)(int least);
  void (*session_del)(Session*);
  int (*submit_settings)(Session*, std::uint8_t flags, const Setting*, std::size_t count);
  int (*set_local_window)(Session*, std::uint8_t flags, std::int32_t stream_id, std::int32_t bytes);
  std::int32_t (*submit_request)(Session*, const void* priority, const Header*, std::size_t count,
                                 const DataProvider*, void* stream_user);
  int (*submit_rst_stream)(Session*, std::uint8_t flags, std::int32_t stream_id,
                           std::uint32_t error);
  ssize_t (*mem_recv)(Session*, const std::uint8_t* data, std::size_t bytes);
  ssize_t (*mem_send)(Session*, const std::uint8_t** data);
  int (*want_read)(Session*);
  int (*want_write)(Session*);
  std::size_t (*queued_frames)(Session*);
  std::uint32_t (*remote_setting)(Session*, std::int32_t id);
  void* (*stream_user)(Session*, std::int32_t stream_id);
  int (*terminate)(Session*, std::uint32_t error);
  const char* (*error_text)(int error);

#ifdef SHARDED_INFER_LINKED_NGHTTP2
#define SHARDED_INFER_FIND(symbol, function)                           \
  {                                                                    \
    extern void linked_##symbol() __asm__("nghttp2_" #symbol);         \
    function = reinterpret_cast<decltype(function)>(&linked_##symbol); \
  }
#define SHARDED_INFER_FIND_IF_THERE SHARDED_INFER_FIND
  static constexpr bool kIsLinked = true;
  Library() {
#else
#define SHARDED_INFER_FIND(symbol, function) find(handle, "nghttp2_" #symbol, function);
#define SHARDED_INFER_FIND_IF_THERE(symbol, function) \
  function = reinterpret_cast<decltype(function)>(dlsym(handle, "nghttp2_" #symbol));
  static constexpr bool kIsLinked = false;
  // Throws std::runtime_error where the library is not installed.
  Library() {
    void* handle = dlopen("libnghttp2.so.14", RTLD_NOW | RTLD_LOCAL);
    // Never closed: it keeps no state, and the next load uses it again.
    if (handle == nullptr) throw std::runtime_error("libnghttp2.so.14 is not installed");
#endif
    SHARDED_INFER_FIND(session_callbacks_new, callbacks_new)
    SHARDED_INFER_FIND(session_callbacks_del, callbacks_del)
    SHARDED_INFER_FIND(session_callbacks_set_on_frame_recv_callback, set_on_frame_recv)
    SHARDED_INFER_FIND(session_callbacks_set_on_header_callback, set_on_header)
    SHARDED_INFER_FIND(session_callbacks_set_on_data_chunk_recv_callback, set_on_data)
    SHARDED_INFER_FIND(session_callbacks_set_on_stream_close_callback, set_on_stream_close)
    SHARDED_INFER_FIND(session_callbacks_set_on_begin_headers_callback, set_on_begin_headers)
    SHARDED_INFER_FIND(session_callbacks_set_on_begin_frame_callback, set_on_begin_frame)
    SHARDED_INFER_FIND(session_callbacks_set_on_frame_send_callback, set_on_frame_send)
    SHARDED_INFER_FIND(session_callbacks_set_on_frame_not_send_callback, set_on_frame_not_send)
    SHARDED_INFER_FIND(option_new, options_new)
    SHARDED_INFER_FIND(option_del, options_del)
    SHARDED_INFER_FIND(option_set_no_auto_window_update, no_auto_window_update)
    SHARDED_INFER_FIND(option_set_no_closed_streams, no_closed_streams)
    SHARDED_INFER_FIND(session_client_new, client_new)
    SHARDED_INFER_FIND(session_client_new2, client_with_options)
    SHARDED_INFER_FIND(session_server_new2, server_new)
    SHARDED_INFER_FIND(submit_response, submit_response)
    SHARDED_INFER_FIND(submit_trailer, submit_trailer)
    SHARDED_INFER_FIND(session_resume_data, resume_data)
    SHARDED_INFER_FIND(submit_ping, submit_ping)
    SHARDED_INFER_FIND(submit_shutdown_notice, submit_notice)
    SHARDED_INFER_FIND(submit_goaway, submit_goaway)
    SHARDED_INFER_FIND(session_get_last_proc_stream_id, last_stream)
    SHARDED_INFER_FIND(session_set_stream_user_data, set_stream_user)
    SHARDED_INFER_FIND(session_consume_connection, consume_connection)
    SHARDED_INFER_FIND(session_consume_stream, consume_stream)
    SHARDED_INFER_FIND(version, version)
    SHARDED_INFER_FIND_IF_THERE(option_set_stream_reset_rate_limit, reset_rate_limit)
    SHARDED_INFER_FIND_IF_THERE(option_set_max_continuations, max_continuations)
    SHARDED_INFER_FIND(session_del, session_del)
    SHARDED_INFER_FIND(submit_settings, submit_settings)
    SHARDED_INFER_FIND(session_set_local_window_size, set_local_window)
    SHARDED_INFER_FIND(submit_request, submit_request)
    SHARDED_INFER_FIND(submit_rst_stream, submit_rst_stream)
    SHARDED_INFER_FIND(session_mem_recv, mem_recv)
    SHARDED_INFER_FIND(session_mem_send, mem_send)
    SHARDED_INFER_FIND(session_want_read, want_read)
    SHARDED_INFER_FIND(session_want_write, want_write)
    SHARDED_INFER_FIND(session_get_outbound_queue_size, queued_frames)
    SHARDED_INFER_FIND(session_get_remote_settings, remote_setting)
    SHARDED_INFER_FIND(session_get_stream_user_data, stream_user)
    SHARDED_INFER_FIND(session_terminate_session, terminate)
    SHARDED_INFER_FIND(strerror, error_text)
  }
#undef SHARDED_INFER_FIND
#undef SHARDED_INFER_FIND_IF_THERE

#ifndef SHARDED_INFER_LINKED_NGHTTP2
 private:
  template <class Function>
  static void find(void* handle, const char* symbol, Function& function) {
    function = reinterpret_cast<Function>(dlsym(handle, symbol));
    if (function == nullptr)
      throw std::runtime_error(std::string("libnghttp2.so.14 has no ") + symbol);
  }
#endif
};

}  // namespace sharded_infer::nghttp2
