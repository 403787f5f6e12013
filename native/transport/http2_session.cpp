#include "http2_session.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string_view>
#include <vector>

#include "server.h"

namespace sharded_infer::transport {

namespace {

// nghttp2's own limit counts those that give up at their deadlines too; ours does not.
constexpr std::uint64_t kResetBurst = 1 << 20, kResetRate = 1 << 18;
constexpr std::size_t kContinuations = 8;
constexpr std::uint32_t kStreamWindow = 256 << 10;
// Window of new streams while calls are refused on their headers: small calls still come in one
// flight, and of a large one that is refused only so much. An admitted one is given the rest.
constexpr std::uint32_t kSmallWindow = 4 << 10;
constexpr double kSmallWindowSeconds = 3.0;  // after the last refusal
constexpr std::int32_t kConnectionWindow = 4 << 20;
// Frames that may wait for a client that takes none, beside one for each call.
constexpr std::size_t kMostWaitingFrames = 4096;
// A client that waits for this share of its deadline, or this long, does not reset rapidly.
constexpr double kWaitedShare = 0.5, kWaitedSeconds = 1.0;
// Under overload a call may be given up before all of its message was read, or with so many others
// between two fetches. Then its client has waited for this long: one that resets its calls again
// and again is held to that rate.
constexpr std::int64_t kMostUntold = 4096;
constexpr double kPatientSeconds = 0.05;
// Between the notice of the end and the last GOAWAY: a round trip of any client.
constexpr double kNoticeSeconds = 0.3;
constexpr int kPingStrikes = 2;
// What a client must send at least, once the time for a small message is over.
constexpr double kSlowestBytesPerSecond = 64 << 10;

nghttp2::Header header(const char* name, std::string_view value) {
  return {reinterpret_cast<const std::uint8_t*>(name),
          reinterpret_cast<const std::uint8_t*>(value.data()), std::strlen(name), value.size(),
          nghttp2::kNoCopyName};
}

// The status of an ending, as trailers. `memory` keeps what they point to.
struct StatusHeaders {
  explicit StatusHeaders(const Ending& ending)
      : code(std::to_string(ending.code)), words(percent_encoded(ending.words)) {
    headers.push_back(header("grpc-status", code));
    if (!words.empty()) headers.push_back(header("grpc-message", words));
    if (ending.retry_seconds >= 0.0) {
      pushback = std::to_string(std::int64_t(std::ceil(ending.retry_seconds * 1e3)));
      headers.push_back(header("grpc-retry-pushback-ms", pushback));
    }
    each_pair(ending.trailers, [this](std::string_view name, std::string_view value) {
      headers.push_back({reinterpret_cast<const std::uint8_t*>(name.data()),
                         reinterpret_cast<const std::uint8_t*>(value.data()), name.size(),
                         value.size(), 0});
    });
  }
  std::string code, words, pushback;
  std::vector<nghttp2::Header> headers;
};

}  // namespace

// What libnghttp2 calls.
struct Http2Callbacks {
  static Http2Session* of(void* user) { return static_cast<Http2Session*>(user); }

  static int begin_headers(nghttp2::Session*, const nghttp2::Frame* frame, void* user) {
    Http2Session* session = of(user);
    const std::int32_t stream = frame->header.stream_id;
    session->connection_->greeted = true;
    // A stream that has a call already sends trailers.
    if (session->call_of(stream) != nullptr) return 0;
    Call* call = session->server_->open_call(session->connection_, stream);
    session->library_.set_stream_user(session->session_, stream, call);
    return 0;
  }

  static int header(nghttp2::Session*, const nghttp2::Frame* frame, const std::uint8_t* name,
                    std::size_t name_bytes, const std::uint8_t* value, std::size_t value_bytes,
                    std::uint8_t, void* user) {
    const Http2Session* session = of(user);
    Call* call = session->call_of(frame->header.stream_id);
    if (call == nullptr) return 0;
    RequestHead& head = call->head;
    head.bytes += name_bytes + value_bytes + 32;
    const auto most = std::size_t(session->server_->settings_.max_header_bytes);
    // Twice the limit are still refused with words; more only takes time.
    if (head.bytes > 2 * most) return nghttp2::kResetStream;
    if (head.bytes > most || call->has_head) return 0;
    head.add({reinterpret_cast<const char*>(name), name_bytes},
             {reinterpret_cast<const char*>(value), value_bytes});
    return 0;
  }

  static int data(nghttp2::Session*, std::uint8_t, std::int32_t stream, const std::uint8_t* data,
                  std::size_t bytes, void* user) {
    const Http2Session* session = of(user);
    session->library_.consume_connection(session->session_, bytes);
    Call* call = session->call_of(stream);
    if (call == nullptr || call->refused) return 0;
    if (call->finished)
      session->library_.consume_stream(session->session_, stream, bytes);
    else
      session->server_->data_came(call, data, bytes);
    return 0;
  }

  static int frame_came(nghttp2::Session*, const nghttp2::Frame* frame, void* user) {
    Http2Session* session = of(user);
    session->connection_->greeted = true;
    const nghttp2::FrameHeader& header = frame->header;
    switch (header.type) {
      case nghttp2::kHeaders:
      case nghttp2::kData: {
        if (header.type == nghttp2::kData && header.bytes == 0 &&
            !(header.flags & nghttp2::kEndStream))
          session->count_empty_frame();
        Call* call = session->call_of(header.stream_id);
        if (call == nullptr) return 0;
        if (header.type == nghttp2::kHeaders && !call->has_head) {
          session->headers_came(call);
          if (call->refused) {
            session->refused_at_ = session->server_->now_;
            session->announce_window(kSmallWindow);
          }
        }
        if (header.flags & nghttp2::kEndStream) session->server_->client_ended(call);
        return 0;
      }
      case nghttp2::kReset: session->client_reset(session->call_of(header.stream_id)); return 0;
      case nghttp2::kPing:
        if (header.flags & nghttp2::kAck)
          session->pinged_ = false;
        else
          session->client_pinged();
        return 0;
      case nghttp2::kWindowUpdate:
        if (session->window_updates_ > 0)
          --session->window_updates_;
        else
          session->count_empty_frame();
        return 0;
      case nghttp2::kSettings:
        if (header.flags & nghttp2::kAck) session->window_acknowledged();
        session->count_empty_frame();
        return 0;
      case nghttp2::kGoAway: return 0;
      default: session->count_empty_frame(); return 0;
    }
  }

  static int frame_sent(nghttp2::Session*, const nghttp2::Frame* frame, void* user) {
    Http2Session* session = of(user);
    const nghttp2::FrameHeader& header = frame->header;
    if (header.type == nghttp2::kHeaders || header.type == nghttp2::kData)
      session->ping_strikes_ = 0;
    if (header.type == nghttp2::kData) session->window_updates_ += 2;
    if (header.type == nghttp2::kHeaders && header.flags & nghttp2::kEndStream) {
      // The rest of the request is not wanted. Submitted with the answer, the reset would overtake
      // it.
      const Call* call = session->call_of(header.stream_id);
      if (call != nullptr && !call->half_closed)
        session->library_.submit_rst_stream(session->session_, 0, header.stream_id,
                                            nghttp2::kNoError);
    }
    // Resets that the client provoked count as its own.
    if (header.type == nghttp2::kReset &&
        reinterpret_cast<const nghttp2::ResetFrame*>(frame)->error != nghttp2::kNoError)
      session->count_reset();
    return 0;
  }

  static int stream_closed(nghttp2::Session*, std::int32_t stream, std::uint32_t, void* user) {
    const Http2Session* session = of(user);
    Call* call = session->call_of(stream);
    if (call != nullptr) session->server_->forget(call);
    return 0;
  }

  // The bytes of a call's answers, then its trailers.
  static ssize_t read_answer(nghttp2::Session*, std::int32_t, std::uint8_t* to, std::size_t most,
                             std::uint32_t* flags, nghttp2::DataSource* source, void* user) {
    auto* call = static_cast<Call*>(source->pointer);
    Http2Session* session = of(user);
    const std::size_t copied = session->server_->read_answers(call, to, most);
    if (copied > 0) session->connection_->moved = session->server_->now_;
    if (call->first_answer == nullptr && call->finished) {
      *flags |= nghttp2::kEndOfData | nghttp2::kNoEndStream;
      session->submit_trailers(call);
    } else if (copied == 0) {
      return nghttp2::kDeferred;
    }
    return ssize_t(copied);
  }
};

Http2::Http2() {
  library_.callbacks_new(&callbacks_);
  library_.set_on_begin_headers(callbacks_, Http2Callbacks::begin_headers);
  library_.set_on_header(callbacks_, Http2Callbacks::header);
  library_.set_on_data(callbacks_, Http2Callbacks::data);
  library_.set_on_frame_recv(callbacks_, Http2Callbacks::frame_came);
  library_.set_on_frame_send(callbacks_, Http2Callbacks::frame_sent);
  library_.set_on_stream_close(callbacks_, Http2Callbacks::stream_closed);
  library_.options_new(&options_);
  library_.no_auto_window_update(options_, 1);
  library_.no_closed_streams(options_, 1);
  if (library_.reset_rate_limit != nullptr)
    library_.reset_rate_limit(options_, kResetBurst, kResetRate);
  if (library_.max_continuations != nullptr) library_.max_continuations(options_, kContinuations);
}

Http2::~Http2() {
  library_.options_del(options_);
  library_.callbacks_del(callbacks_);
}

Http2Session::Http2Session(const Http2& shared, Connection* connection)
    : library_(shared.library_), connection_(connection), server_(connection->server) {
  library_.server_new(&session_, shared.callbacks_, this, shared.options_);
  const Settings& limits = server_->settings_;
  const nghttp2::Setting settings[] = {
      {nghttp2::kMaxConcurrentStreams, std::uint32_t(limits.max_connection_calls)},
      {nghttp2::kInitialWindow, kStreamWindow},
      {nghttp2::kMaxHeaderListSize, std::uint32_t(limits.max_header_bytes)},
  };
  library_.submit_settings(session_, 0, settings, 3);
  announced_window_ = kStreamWindow;
  library_.set_local_window(session_, 0, 0, kConnectionWindow);
}

Http2Session::~Http2Session() { library_.session_del(session_); }

bool Http2Session::read(const std::uint8_t* data, std::size_t bytes) {
  return library_.mem_recv(session_, data, bytes) >= 0;
}

void Http2Session::write(std::string* out, std::size_t most) {
  const std::uint8_t* part = nullptr;
  ssize_t bytes = 0;
  while (out->size() < most && (bytes = library_.mem_send(session_, &part)) > 0)
    out->append(reinterpret_cast<const char*>(part), std::size_t(bytes));
}

bool Http2Session::is_flooded() const {
  return library_.queued_frames(session_) > kMostWaitingFrames + std::size_t(connection_->calls);
}

bool Http2Session::is_over() const {
  return !library_.want_read(session_) && !library_.want_write(session_);
}

Call* Http2Session::call_of(std::int32_t stream) const {
  return static_cast<Call*>(library_.stream_user(session_, stream));
}

void Http2Session::consumed(Call* call, std::size_t bytes) {
  widen(call);
  library_.consume_stream(session_, call->stream, bytes);
}

void Http2Session::widen(const Call* call) {
  library_.set_local_window(session_, 0, call->stream, kStreamWindow);
}

void Http2Session::announce_window(std::uint32_t bytes) {
  if (bytes == announced_window_ || !settings_acknowledged_) return;
  announced_window_ = bytes;
  settings_acknowledged_ = false;
  const nghttp2::Setting setting = {nghttp2::kInitialWindow, bytes};
  library_.submit_settings(session_, 0, &setting, 1);
  server_->touch(connection_);
}

// The client has changed the windows of open streams by the difference of the settings.
void Http2Session::window_acknowledged() {
  settings_acknowledged_ = true;
  for (const Call* call = connection_->first_call; call != nullptr; call = call->after)
    if (!call->half_closed && !call->refused) widen(call);
}

void Http2Session::forget(Call* call) { library_.set_stream_user(session_, call->stream, nullptr); }

void Http2Session::headers_came(Call* call) {
  call->has_head = true;
  const RequestHead& head = call->head;
  if (!head.is_post) return refuse_request(call, "405");
  if (!head.is_grpc) return refuse_request(call, "415");
  const std::int64_t most = server_->settings_.max_header_bytes;
  if (head.bytes > std::size_t(most))
    return server_->refuse(call, {8, "the metadata has more than " + plural(most, "byte")});
  const auto found = server_->method_by_path_.find(head.path);
  if (found == server_->method_by_path_.end())
    return server_->refuse(call, {12, "Method not found!"});
  call->head.method = found->second;
  server_->admit_call(call);
}

void Http2Session::refuse_request(Call* call, const char* status) {
  call->refused = call->finished = call->answered = true;
  // RFC 9110, section 15.5.6: a 405 says what is allowed.
  const nghttp2::Header headers[] = {header(":status", status), header("allow", "POST")};
  const std::size_t count = std::strcmp(status, "405") == 0 ? 2 : 1;
  library_.submit_response(session_, call->stream, headers, count, nullptr);
  server_->touch(connection_);
}

void Http2Session::send(Call* call) {
  if (call->answered) {
    library_.resume_data(session_, call->stream);
    return;
  }
  call->answered = true;
  std::vector<nghttp2::Header> headers = {header(":status", "200"),
                                          header("content-type", "application/grpc")};
  if (call->first_answer == nullptr && call->finished) {
    // Nothing but a status: one frame of headers.
    const StatusHeaders status(call->ending);
    headers.insert(headers.end(), status.headers.begin(), status.headers.end());
    library_.submit_response(session_, call->stream, headers.data(), headers.size(), nullptr);
  } else {
    nghttp2::DataProvider data;
    data.source.pointer = call;
    data.read = Http2Callbacks::read_answer;
    library_.submit_response(session_, call->stream, headers.data(), headers.size(), &data);
  }
}

void Http2Session::submit_trailers(Call* call) {
  if (call->ending.code == 0 && call->ending.trailers.empty()) {
    static const nghttp2::Header good = header("grpc-status", "0");
    library_.submit_trailer(session_, call->stream, &good, 1);
    return;
  }
  const StatusHeaders status(call->ending);
  library_.submit_trailer(session_, call->stream, status.headers.data(), status.headers.size());
}

void Http2Session::look_after() {
  look_after_messages();
  if (connection_->dead) return;
  if (connection_->calls == 0 &&
      server_->now_ > connection_->idle_since + server_->settings_.idle_seconds && !said_shutdown_)
    connection_->age = 0.0;
  if (server_->now_ > refused_at_ + kSmallWindowSeconds) announce_window(kStreamWindow);
  keep_alive();
  if (!connection_->expelled) leave();
}

void Http2Session::look_after_messages() {
  const double now = server_->now_;
  for (Call* call = connection_->first_call; call != nullptr; call = call->after) {
    if (call->half_closed || call->refused || call->finished) continue;
    // A stream may be silent between its messages, but not within one.
    if (call->has_head && server_->is_stream(call) && call->prefix_bytes == 0)
      call->message_deadline = now + server_->settings_.message_seconds;
    if (now < call->message_deadline + call->got / kSlowestBytesPerSecond) continue;
    ++server_->counters_.too_late;
    // Without an end of its headers the connection carries nothing else until it has.
    if (!call->has_head) return server_->close_soon(connection_);
    server_->refuse(call, {4, "the message did not come in time"});
  }
}

void Http2Session::keep_alive() {
  const double now = server_->now_;
  if (pinged_ && connection_->active > ping_at_) pinged_ = false;
  if (pinged_) {
    if (now < ping_at_ + server_->settings_.keepalive_timeout_seconds) return;
    ++server_->counters_.keepalive_lost;
    server_->expel(connection_, false, "keepalive_timeout");
  } else if (now > connection_->active + server_->settings_.keepalive_seconds) {
    pinged_ = true;
    ping_at_ = now;
    library_.submit_ping(session_, 0, nullptr);
    server_->touch(connection_);
  }
}

// A connection ends without losing a call: a notice, a GOAWAY with the last call that was seen,
// and the end when all are answered.
void Http2Session::leave() {
  const double now = server_->now_;
  const bool leaves = server_->draining_ || now > connection_->began + connection_->age;
  if (leaves && !said_shutdown_) {
    said_shutdown_ = true;
    goaway_at_ = now + kNoticeSeconds;
    library_.submit_notice(session_);
    server_->touch(connection_);
  } else if (said_shutdown_ && !said_goaway_ && now >= goaway_at_) {
    said_goaway_ = connection_->ending = connection_->lingers = true;
    library_.submit_goaway(session_, 0, library_.last_stream(session_), nghttp2::kNoError, nullptr,
                           0);
    server_->touch(connection_);
  } else if (said_goaway_) {
    const double until = server_->draining_ ? server_->draining_since_ + server_->drain_seconds_
                                            : goaway_at_ + server_->settings_.grace_seconds;
    if (now > until) server_->close_soon(connection_);
  }
}

void Http2Session::expel(bool calm, const char* words) {
  said_shutdown_ = said_goaway_ = connection_->lingers = true;
  library_.submit_goaway(session_, 0, library_.last_stream(session_),
                         calm ? nghttp2::kEnhanceYourCalm : nghttp2::kNoError,
                         reinterpret_cast<const std::uint8_t*>(words), std::strlen(words));
}

void Http2Session::client_pinged() {
  count_empty_frame();
  if (connection_->calls > 0) return;
  const double now = server_->now_;
  const bool soon = now < last_client_ping_ + server_->settings_.least_ping_seconds;
  last_client_ping_ = now;
  if (!soon) {
    ping_strikes_ = 0;
  } else if (++ping_strikes_ > kPingStrikes) {
    server_->calm(connection_, &server_->counters_.too_many_pings, "too_many_pings");
  }
}

// Under overload all clients give up, at their deadlines: only those count that hardly waited.
void Http2Session::client_reset(const Call* call) {
  if (call == nullptr) return count_empty_frame();
  double waits = std::min(kWaitedSeconds, kWaitedShare * call->head.timeout);
  if (!call->handed || server_->untold_ > kMostUntold) waits = std::max(waits, kPatientSeconds);
  if (server_->now_ < call->began + waits) count_reset();
}

void Http2Session::count_reset() {
  if (resets_.take(server_->now_) > 0.0)
    server_->calm(connection_, &server_->counters_.too_many_resets, "too_many_resets");
}

void Http2Session::count_empty_frame() {
  if (empty_frames_.take(server_->now_) > 0.0)
    server_->calm(connection_, &server_->counters_.too_many_frames, "too_many_frames");
}

}  // namespace sharded_infer::transport
