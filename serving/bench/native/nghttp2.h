// The part of libnghttp2's interface that is used, as its own header declares it in every 1.x.
//
// The library is looked for when a load is made, not when this is compiled or loaded: neither a
// build nor the other commands need it.
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

// nghttp2_frame, a union whose members all begin with the header: only that is read.
struct Frame {
  FrameHeader header;
};

struct Setting {  // nghttp2_settings_entry
  std::int32_t id;
  std::uint32_t value;
};

using OnFrame = int (*)(Session*, const Frame*, void* user);
using OnHeader = int (*)(Session*, const Frame*, const std::uint8_t* name, std::size_t name_bytes,
                         const std::uint8_t* value, std::size_t value_bytes, std::uint8_t flags,
                         void* user);
using OnData = int (*)(Session*, std::uint8_t flags, std::int32_t stream_id,
                       const std::uint8_t* data, std::size_t bytes, void* user);
using OnStreamClose = int (*)(Session*, std::int32_t stream_id, std::uint32_t error, void* user);

enum HeaderFlag : std::uint8_t { kNoIndex = 1, kNoCopyName = 2, kNoCopyValue = 4 };
enum FrameType : std::uint8_t { kData = 0, kHeaders = 1, kSettings = 4, kGoAway = 7 };
enum FrameFlag : std::uint8_t { kEndStream = 1, kAck = 1 };
enum SettingId : std::int32_t { kEnablePush = 2, kMaxConcurrentStreams = 3, kInitialWindow = 4 };
enum DataFlag : std::uint32_t { kEndOfData = 1 };

// Error codes of HTTP/2 itself (RFC 9113, section 7).
enum Http2Error : std::uint32_t {
  kNoError = 0,
  kRefusedStream = 7,
  kCancel = 8,
  kEnhanceYourCalm = 11,
};

struct Library {
  int (*callbacks_new)(Callbacks**);
  void (*callbacks_del)(Callbacks*);
  void (*set_on_frame_recv)(Callbacks*, OnFrame);
  void (*set_on_header)(Callbacks*, OnHeader);
  void (*set_on_data)(Callbacks*, OnData);
  void (*set_on_stream_close)(Callbacks*, OnStreamClose);
  int (*client_new)(Session**, const Callbacks*, void* user);
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
  std::uint32_t (*remote_setting)(Session*, std::int32_t id);
  void* (*stream_user)(Session*, std::int32_t stream_id);
  int (*terminate)(Session*, std::uint32_t error);
  const char* (*error_text)(int error);

  // Throws std::runtime_error where the library is not installed.
  Library() {
    void* handle = dlopen("libnghttp2.so.14", RTLD_NOW | RTLD_LOCAL);
    // Never closed: it keeps no state, and the next load uses it again.
    if (handle == nullptr) throw std::runtime_error("libnghttp2.so.14 is not installed");
    find(handle, "session_callbacks_new", callbacks_new);
    find(handle, "session_callbacks_del", callbacks_del);
    find(handle, "session_callbacks_set_on_frame_recv_callback", set_on_frame_recv);
    find(handle, "session_callbacks_set_on_header_callback", set_on_header);
    find(handle, "session_callbacks_set_on_data_chunk_recv_callback", set_on_data);
    find(handle, "session_callbacks_set_on_stream_close_callback", set_on_stream_close);
    find(handle, "session_client_new", client_new);
    find(handle, "session_del", session_del);
    find(handle, "submit_settings", submit_settings);
    find(handle, "session_set_local_window_size", set_local_window);
    find(handle, "submit_request", submit_request);
    find(handle, "submit_rst_stream", submit_rst_stream);
    find(handle, "session_mem_recv", mem_recv);
    find(handle, "session_mem_send", mem_send);
    find(handle, "session_want_read", want_read);
    find(handle, "session_want_write", want_write);
    find(handle, "session_get_remote_settings", remote_setting);
    find(handle, "session_get_stream_user_data", stream_user);
    find(handle, "session_terminate_session", terminate);
    find(handle, "strerror", error_text);
  }

 private:
  template <class Function>
  static void find(void* handle, const char* name, Function& function) {
    const std::string symbol = std::string("nghttp2_") + name;
    function = reinterpret_cast<Function>(dlsym(handle, symbol.c_str()));
    if (function == nullptr) throw std::runtime_error("libnghttp2.so.14 has no " + symbol);
  }
};

}  // namespace sharded_infer::nghttp2
