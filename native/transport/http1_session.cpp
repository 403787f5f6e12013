#include "http1_session.h"

#include <algorithm>
#include <cstdio>

#include "http1_answer.h"
#include "server.h"

namespace sharded_infer::transport {

namespace {

constexpr int kMostHeaders = 100;
// Each piece of a body costs some time, however small: beyond these, pieces have a least mean size.
constexpr std::int64_t kFreePieces = 4096, kLeastPieceBytes = 64;
// Bytes that chunk sizes, line breaks and trailers may add to a chunked body.
constexpr std::int64_t kFramingBytes = 64 << 10;
// Between the method, the target and the version.
constexpr int kLineSpaces = 2;
// Of a body that nobody asked for. Closed with unread bytes, the connection would be reset, and
// its client might lose the answer.
constexpr std::size_t kMostDiscarded = 1 << 20;

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

void append_value(std::string* values, std::string_view value) {
  if (!values->empty()) values->append(", ");
  values->append(value);
}

}  // namespace

// Callbacks of llhttp. A request's head is kept up to its limit; bytes beyond are only counted.
struct Http1Callbacks {
  static Http1Session* of(llhttp_t* parser) { return static_cast<Http1Session*>(parser->data); }

  static void keep(llhttp_t* parser, std::string Http1Session::Request::* what, const char* data,
                   std::size_t bytes) {
    Http1Session* session = of(parser);
    Http1Session::Request& request = session->request_;
    // Trailers are not used.
    if (request.has_head) return;
    request.head.bytes += bytes;
    if (request.head.bytes <= std::size_t(session->server_->settings_.max_header_bytes))
      (request.*what).append(data, bytes);
  }
  static int url(llhttp_t* parser, const char* data, std::size_t bytes) {
    keep(parser, &Http1Session::Request::target, data, bytes);
    return 0;
  }
  static int name(llhttp_t* parser, const char* data, std::size_t bytes) {
    keep(parser, &Http1Session::Request::name, data, bytes);
    return 0;
  }
  static int value(llhttp_t* parser, const char* data, std::size_t bytes) {
    keep(parser, &Http1Session::Request::value, data, bytes);
    return 0;
  }
  static int header(llhttp_t* parser) {
    of(parser)->header_came();
    return 0;
  }
  static int head(llhttp_t* parser) { return of(parser)->head_came(); }
  static int body(llhttp_t* parser, const char* data, std::size_t bytes) {
    of(parser)->body_came(data, bytes);
    return 0;
  }
  static int complete(llhttp_t* parser) {
    of(parser)->request_.is_complete = true;
    // What follows is another request's, and waits.
    return HPE_PAUSED;
  }
  static const llhttp_settings_t* all() {
    static const llhttp_settings_t made = [] {
      llhttp_settings_t settings;
      llhttp_settings_init(&settings);
      settings.on_url = url;
      settings.on_header_field = name;
      settings.on_header_value = value;
      settings.on_header_value_complete = header;
      settings.on_headers_complete = head;
      settings.on_body = body;
      settings.on_message_complete = complete;
      return settings;
    }();
    return &made;
  }
};

Http1Session::Http1Session(Connection* connection)
    : connection_(connection), server_(connection->server) {
  llhttp_init(&parser_, HTTP_REQUEST, Http1Callbacks::all());
  parser_.data = this;
  is_last_ = connection->only_probes || server_->settings_.http_answers_once != 0;
}

bool Http1Session::read(const std::uint8_t* data, std::size_t bytes) {
  const char* text = reinterpret_cast<const char*>(data);
  if (is_broken_ || connection_->ending)
    request_.discarded += bytes;
  else if (request_.is_complete || !rest_.empty())
    rest_.append(text, bytes);
  else
    parse(text, bytes);
  return true;
}

bool Http1Session::wants_read() const {
  return rest_.empty() && request_.discarded <= kMostDiscarded && !connection_->ending;
}

void Http1Session::parse(const char* data, std::size_t bytes) {
  if (request_.began == 0.0) {
    request_.began = server_->now_;
    server_->wait_anew(connection_);
  }
  if (!request_.has_line) count_spaces(data, bytes);
  if (request_.has_head) request_.came_at_once = false;
  const llhttp_errno_t error = llhttp_execute(&parser_, data, bytes);
  std::size_t taken = bytes;
  if (error == HPE_PAUSED) {
    taken = std::size_t(llhttp_get_error_pos(&parser_) - data);
    rest_.assign(data + taken, bytes - taken);
    llhttp_resume(&parser_);
  } else if (error != HPE_OK && failed_ == 0) {
    // The parser's words have nothing of the client's.
    fail(400, std::string("this is no HTTP: ") + llhttp_get_error_reason(&parser_));
  }
  request_.received += taken;
  if (failed_ == 0) check_size();
  if (failed_ != 0) {
    ++server_->counters_.protocol_errors;
    is_broken_ = true;
    rest_.clear();
    if (call_ == nullptr) call_ = server_->open_call(connection_, 0);
    if (!call_->handed) server_->refuse(call_, {3, failure_, -1.0, failed_});
  } else if (request_.is_complete) {
    request_came();
  } else if (call_ != nullptr && !call_->handed && !call_->refused) {
    tells_to_go_on_ = request_.asks_to_go_on && call_->got == 0;
    request_.asks_to_go_on = false;
    server_->set_idle(connection_, true);
    if (tells_to_go_on_) server_->touch(connection_);
  }
}

// The parser takes several spaces of the request's line for one.
void Http1Session::count_spaces(const char* data, std::size_t bytes) {
  // Empty lines may come before the line, and none before its first space.
  const char* end = data + bytes;
  const char* first = request_.spaces > 0 ? data : std::find(data, end, ' ');
  if (first == end) return;
  const char* last = std::find(first, end, '\n');
  request_.has_line = last != end;
  request_.spaces += int(std::count(first, last, ' '));
}

bool Http1Session::fail(std::int32_t status, std::string words) {
  failed_ = status;
  failure_ = std::move(words);
  return false;
}

void Http1Session::header_came() {
  if (request_.has_head) return;
  const std::string name = lower(request_.name);
  const std::string_view value = trimmed(request_.value);
  ++request_.headers;
  if (name == "authorization") {
    request_.head.has_authorization = true;
    append_value(&request_.head.authorization, value);
  } else if (name == "host") {
    ++request_.hosts;
  } else if (name == "transfer-encoding") {
    append_value(&request_.coding, value);
  } else if (name == "expect") {
    request_.asks_to_go_on = lower(value) == "100-continue";
  }
  if (request_.head.bytes <= std::size_t(server_->settings_.max_header_bytes))
    request_.head.keep(name, value);
  request_.name.clear();
  request_.value.clear();
}

int Http1Session::head_came() {
  request_.has_head = true;
  connection_->greeted = true;
  // Available only until the end of the request.
  request_.keeps_open = llhttp_should_keep_alive(&parser_) != 0 && parser_.http_minor == 1;
  request_.is_head = parser_.method == HTTP_HEAD;
  request_.has_body = (parser_.flags & F_CHUNKED) != 0 || parser_.content_length > 0;
  if (!check_head()) return -1;
  // A client that asks to upgrade stays in HTTP/1.1, as RFC 9110, section 7.8 allows.
  parser_.upgrade = 0;
  call_ = server_->open_call(connection_, 0);
  call_->has_head = true;
  RequestHead& head = request_.head;
  head.keep(":method", llhttp_method_name(llhttp_method_t(parser_.method)));
  head.keep(":path", request_.target);
  std::swap(call_->head, head);
  request_.received = 0;
  admit();
  return 0;
}

// Refuses a head that two servers could read differently (RFC 9112, sections 3.2 and 6.3), or that
// is too large.
bool Http1Session::check_head() {
  const std::int64_t most = server_->settings_.max_header_bytes;
  const auto bytes = std::int64_t(request_.head.bytes);
  const bool is_new = parser_.http_minor == 1;
  if (request_.spaces != kLineSpaces)
    return fail(400, "the request's line: expected one space between its parts");
  if (parser_.http_major != 1 || parser_.http_minor > 1)
    return fail(400, "HTTP/" + std::to_string(parser_.http_major) + "." +
                         std::to_string(parser_.http_minor) + ": expected HTTP/1.1 or HTTP/1.0");
  if (bytes > most)
    return fail(431,
                plural(bytes, "byte") + " of headers, expected at most " + std::to_string(most));
  if (request_.headers > kMostHeaders)
    return fail(431, std::to_string(request_.headers) + " headers, expected at most " +
                         std::to_string(kMostHeaders));
  const std::string& target = request_.target;
  if (target.empty() || !std::all_of(target.begin(), target.end(),
                                     [](char byte) { return byte >= '!' && byte <= '~'; }))
    return fail(400, "the request's target: expected ASCII characters without spaces");
  if (request_.hosts > 1) return fail(400, "expected one header Host, got several");
  if (is_new && request_.hosts == 0) return fail(400, "HTTP/1.1: expected a header Host");
  if (parser_.flags & F_TRANSFER_ENCODING) {
    // A proxy may trust the other header, which would allow request smuggling.
    if (parser_.flags & F_CONTENT_LENGTH)
      return fail(400, "expected Content-Length or Transfer-Encoding, got both");
    if (!is_new || lower(request_.coding) != "chunked")
      return fail(400, "Transfer-Encoding: expected chunked, in HTTP/1.1");
  }
  if (parser_.method == HTTP_CONNECT) return fail(400, "CONNECT: this server is no proxy");
  request_.asks_to_go_on = request_.asks_to_go_on && is_new;
  return true;
}

// Decides on a request by its head, and whether its body is wanted.
void Http1Session::admit() {
  const std::string_view target = request_.target;
  const std::int32_t route = server_->routes_.find(
      llhttp_method_name(llhttp_method_t(parser_.method)), target.substr(0, target.find('?')));
  if (route < 0) return server_->refuse(call_, {5, "there is no such path", -1.0});
  const Route& known = server_->route_settings_[std::size_t(route)];
  if (connection_->only_probes && known.is_probe == 0)
    return server_->end(
        call_, {14, "too many connections: this one may only ask /live and /ready", {}, 1.0, 0});
  request_.is_open = known.access == kOpen;
  call_->head.method = server_->first_route_ + route;
  server_->admit_call(call_);
  if (call_->refused || !request_.has_body) return;
  request_.max_body = known.max_body;
  // Nobody asks for a body.
  if (known.max_body == 0) return server_->hand_whole(call_);
  const bool is_chunked = (parser_.flags & F_CHUNKED) != 0;
  if (!is_chunked && parser_.content_length > std::uint64_t(known.max_body))
    return server_->refuse(call_,
                           {8, "the body is " + std::to_string(parser_.content_length) +
                                   " bytes, expected at most " + std::to_string(known.max_body)});
  call_->wanted =
      std::uint32_t(is_chunked ? std::uint64_t(known.max_body) : parser_.content_length);
}

void Http1Session::body_came(const char* data, std::size_t bytes) {
  ++request_.pieces;
  request_.body_bytes += std::int64_t(bytes);
  if (call_ == nullptr || call_->handed || call_->refused || call_->finished)
    request_.discarded += bytes;
  else if (request_.body_bytes > request_.max_body)
    server_->refuse(call_, {8, "the body is more than " + plural(request_.max_body, "byte")});
  else
    server_->take_in(call_, reinterpret_cast<const std::uint8_t*>(data), bytes);
}

void Http1Session::check_size() {
  const auto received = std::int64_t(request_.received);
  if (!request_.has_head) {
    const std::int64_t most = server_->settings_.max_header_bytes;
    if (received > most)
      fail(400, "expected at most " + std::to_string(most) + " bytes of headers");
    return;
  }
  if (!(parser_.flags & F_CHUNKED)) return;
  if (request_.body_bytes < (request_.pieces - kFreePieces) * kLeastPieceBytes)
    fail(400, "the body has " + plural(request_.pieces, "chunk") + " of less than " +
                  std::to_string(kLeastPieceBytes) + " bytes on average");
  else if (received > 2 * request_.body_bytes + kFramingBytes + 64 * request_.pieces)
    fail(400, "the body's chunks have too long extensions, or trailers");
}

void Http1Session::request_came() {
  call_->half_closed = true;
  if (!call_->handed && !call_->refused && !call_->finished) server_->hand_whole(call_);
  // What anyone may ask holds no place against others: its connection may still be evicted.
  server_->set_idle(connection_, call_->finished || request_.is_open);
}

void Http1Session::write(std::string* out, std::size_t most) {
  if (tells_to_go_on_) out->append("HTTP/1.1 100 Continue\r\n\r\n");
  tells_to_go_on_ = false;
  if (call_ == nullptr || !call_->finished) return;
  if (!call_->answered) begin_answer(out);
  while (call_->first_answer != nullptr && out->size() < most && !request_.is_head) {
    const Answer& next = *call_->first_answer;
    const std::size_t before = out->size();
    const std::size_t part = std::min<std::size_t>(most - before, next.bytes - next.sent);
    out->resize(before + part);
    server_->read_answers(call_, reinterpret_cast<std::uint8_t*>(&(*out)[before]), part);
  }
  if (call_->first_answer == nullptr || request_.is_head) end_request();
}

void Http1Session::begin_answer(std::string* out) {
  call_->answered = true;
  connection_->moved = server_->now_;
  // Until its client has taken the answer.
  server_->set_idle(connection_, true);
  // Where a body has not come, or hardly, the client may be waiting to send the rest of it.
  request_.closes = is_last_ || is_broken_ || !request_.keeps_open || !request_.is_complete ||
                    (request_.discarded > 0 && !request_.came_at_once);
  if (call_->first_answer == nullptr) {
    const ErrorAnswer error(call_->ending);
    out->append(http_head(error.lines, request_.closes));
    if (!request_.is_head) out->append(error.body);
    return;
  }
  std::string lines(call_->first_answer->head_bytes, '\0');
  server_->read_answers(call_, reinterpret_cast<std::uint8_t*>(lines.data()), lines.size());
  out->append(http_head(lines, request_.closes));
}

void Http1Session::end_request() {
  connection_->ending = request_.closes;
  connection_->lingers = request_.closes;
  if (request_.closes) rest_.clear();
  server_->forget(call_);
  server_->wait_anew(connection_);
  request_ = Request();
}

void Http1Session::written() {
  if (rest_.empty() || call_ != nullptr || connection_->ending) return;
  const std::string rest = std::move(rest_);
  rest_.clear();
  parse(rest.data(), rest.size());
}

void Http1Session::forget(Call* call) {
  if (call == call_) call_ = nullptr;
}

void Http1Session::look_after() {
  const double now = server_->now_;
  const Settings& limits = server_->settings_;
  if (server_->draining_ || now > connection_->began + connection_->age) {
    is_last_ = true;
    if (call_ == nullptr && !connection_->ending) {
      connection_->ending = true;
      server_->touch(connection_);
    } else if (server_->draining_ && now > server_->draining_since_ + server_->drain_seconds_) {
      server_->close_soon(connection_);
    }
  }
  if (connection_->ending) return;
  if (call_ == nullptr) {
    if (request_.began > 0.0 && now > request_.began + limits.handshake_seconds) {
      ++server_->counters_.too_late;
      server_->close_soon(connection_);
    } else if (request_.began == 0.0 && connection_->greeted &&
               now > connection_->idle_since + limits.idle_seconds) {
      server_->close_soon(connection_);
    }
  } else if (!call_->half_closed && !call_->handed && !call_->refused &&
             now > call_->message_deadline) {
    ++server_->counters_.bodies_too_late;
    char seconds[32];
    std::snprintf(seconds, sizeof seconds, "%g", limits.message_seconds);
    server_->refuse(call_,
                    {4, std::string("the body took more than ") + seconds + " s", -1.0, 408});
  }
}

}  // namespace sharded_infer::transport
