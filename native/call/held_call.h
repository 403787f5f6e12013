// A predict call from its decoded message to its answer.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "route.h"

namespace sharded_infer::calls {

// How a call's message and answer are written; 0: not a predict call that compiled code takes.
enum Form : std::int32_t { kNotTaken = 0, kInfer = 1, kPredict = 2 };

struct HeldCall {
  scheduler::Request request;  // its handle is below -1
  Route* route = nullptr;      // null: the place is free
  std::uint64_t call = 0;      // the transport's number
  Form form = kInfer;
  double decoded = 0.0;
  std::int64_t ahead = 0;     // requests that waited when it arrived
  std::uint64_t outputs = 0;  // a bit for each that is wanted
  std::string id;
  std::string label;    // that a weight chose
  std::string message;  // of a call that is kept for another version; else empty
  Layout layout{};
  std::vector<std::uint8_t> own;         // [features]: in the first group
  std::vector<std::int64_t> dense_at;    // [dense]: in words
  std::vector<std::int64_t> dense_rows;  // [dense]
  std::unique_ptr<std::int64_t[]> words;
  std::int64_t capacity = 0;  // of `words`

  void reserve(std::int64_t wanted) {
    if (wanted <= capacity) return;
    words.reset(new std::int64_t[std::size_t(wanted)]);
    capacity = wanted;
  }

  // The place will be another call's: much memory is not kept for that.
  void clear() {
    --route->held;
    route = nullptr;
    label.clear();
    if (capacity > kKeptWords) {
      words.reset();
      capacity = 0;
    }
    if (id.capacity() > kKeptText) std::string().swap(id);
    if (!message.empty()) std::string().swap(message);
  }

 private:
  static constexpr std::int64_t kKeptWords = 512;
  static constexpr std::size_t kKeptText = 256;
};

}  // namespace sharded_infer::calls
