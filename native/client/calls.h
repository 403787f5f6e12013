// The calls of a round: those that the caller has started since it last cleared them.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "buffers.h"
#include "call.h"

namespace sharded_infer::client {

class Calls {
 public:
  // A call of before is used again: only memory of it is left.
  Call* add() {
    if (count_ == calls_.size()) calls_.push_back(std::make_unique<Call>());
    Call* call = calls_[count_].get();
    call->number = std::int32_t(count_++);
    call->state = Call::State::kWaiting;
    call->sends = 0;
    call->stream = 0;
    call->forget_answer();
    ++open_;
    return call;
  }

  void end(Call* call, Code code, std::string words) {
    if (call->state == Call::State::kEnded) return;
    call->state = Call::State::kEnded;
    call->connection = nullptr;
    call->code = code;
    call->words = std::move(words);
    if (code != kOk) drop_answer(call);
    --open_;
    fresh_.push_back(call->number);
  }

  // What has come of an answer that is not wanted.
  void drop_answer(Call* call) {
    if (call->answer != nullptr) buffers.give_back(call->answer);
    call->answer = nullptr;
  }

  // All must have ended.
  void clear() {
    for (std::size_t at = 0; at < count_; ++at) drop_answer(calls_[at].get());
    count_ = 0;
    fresh_.clear();
  }

  Call* operator[](std::int32_t number) { return calls_[std::size_t(number)].get(); }
  std::int32_t count() const { return std::int32_t(count_); }
  std::int32_t open() const { return open_; }
  // Those that have ended and whose caller has not been told.
  std::vector<std::int32_t>& fresh() { return fresh_; }

  Buffers buffers;

 private:
  std::vector<std::unique_ptr<Call>> calls_;
  std::size_t count_ = 0;
  std::int32_t open_ = 0;
  std::vector<std::int32_t> fresh_;
};

}  // namespace sharded_infer::client
