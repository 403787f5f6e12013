// What a call's client is sent: messages, a status, or a refusal.
#include <algorithm>

#include "server.h"

namespace sharded_infer::transport {

void Server::refuse(Call* call, Refusal refusal) {
  if (call->refused || call->finished) return;
  call->refused = true;
  const std::int32_t number = call->head.method;
  ++counters_.refused[refusal.code];
  refused_now_ = true;
  if (number >= 0 && methods_[std::size_t(number)].access & (kPredict | kNotHere))
    ++counters_.refused_predict[refusal.code];
  if (call->handed) hand(call, kCancelled);
  Ending ending;
  ending.code = refusal.code;
  ending.words = std::move(refusal.words);
  ending.retry_seconds = refusal.retry_seconds;
  ending.http_status = refusal.http_status;
  if (refusal.code == 12 && call->head.encoding == kOther) {
    RequestHead trailers;
    trailers.keep("grpc-accept-encoding", "identity,gzip,deflate");
    ending.trailers = std::move(trailers.others);
  }
  drop_message(call);
  end(call, std::move(ending));
}

void Server::answer(Call* call, Answer* answer) {
  call->add(answer);
  call->connection->count(&Usage::answer_bytes, answer->bytes);
  answer_bytes_ += answer->bytes;
  call->connection->session->send(call);
  touch(call->connection);
}

void Server::end(Call* call, Ending ending) {
  // An answer that its client does not take is nobody's work any more.
  if (call->handed && !call->finished) count_handed(call, -1);
  call->finished = true;
  leave_streams(call);
  call->ending = std::move(ending);
  call->connection->session->send(call);
  touch(call->connection);
}

// Copies at most `most` unsent bytes of a call's answers; returns their number.
std::size_t Server::read_answers(Call* call, std::uint8_t* to, std::size_t most) {
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
    answer_was_sent(call);
  }
  call->connection->count(&Usage::answer_bytes, -std::int64_t(copied));
  answer_bytes_ -= std::int64_t(copied);
  return copied;
}

void Server::answer_was_sent(Call* call) {
  if (call->open_messages == 0) return;
  if (--call->open_messages == 0) call->silent_since = now_;
  read_on_.push_back(call->id);
}

}  // namespace sharded_infer::transport
