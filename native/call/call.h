// A predict call from its decoded message to its answer.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "route.h"

namespace sharded_infer::call {

// Its place is kept for a later call; much memory is not.
struct Call {
  scheduler::Request request;  // its handle is below -1
  Route* route = nullptr;      // null: the place is free
  std::uint64_t number = 0;    // of the transport's call
  Sender sender = kGrpc;
  Form form = kInfer;
  std::int32_t encoding = 0;  // that its client accepts, of HTTP; a `transport::Encoding`
  double decoded = 0.0;
  std::int64_t ahead = 0;             // calls that waited when it came
  std::vector<std::uint8_t> outputs;  // as ReadCall::outputs
  bool reports_unknown = false;
  std::int64_t trace = 0;  // 0: it is not traced
  std::string id, label;
  std::string message;          // kept for another version; else empty
  std::string recorded;         // kept for a recording; else empty
  Form recorded_form = kInfer;  // of `recorded`
  std::int64_t json_bytes = 0;  // as Message's
  std::vector<PlacedOutput> placed;
  std::vector<std::string> regions;  // whose texts `placed` refers to
  Layout layout{};
  std::vector<std::uint8_t> own;         // [features]: in the first group
  std::vector<std::int64_t> dense_at;    // [dense]: in words
  std::vector<std::int64_t> dense_rows;  // [dense]
  std::vector<std::int64_t> unknown;     // [mapped tables], if it reports them
  std::unique_ptr<std::int64_t[]> words;
  std::int64_t capacity = 0;  // of `words`

  void reserve(std::int64_t wanted) {
    if (wanted <= capacity) return;
    words.reset(new std::int64_t[std::size_t(wanted)]);
    capacity = wanted;
  }

  // The region's text is copied; `regions` has room for it.
  void place(PlacedOutput output) {
    regions.emplace_back(static_cast<const char*>(output.region), std::size_t(output.region_bytes));
    output.region = regions.back().data();
    placed.push_back(output);
  }

  // True if Python compresses and sends an answer of this size.
  bool compresses(std::int64_t bytes) const { return encoding != 0 && bytes >= kLeastCompressed; }
  std::int64_t samples() const { return layout.batch; }
  const float* dense(std::int64_t input) const {
    return reinterpret_cast<const float*>(words.get() + dense_at[std::size_t(input)]);
  }

  void clear() {
    --route->calls;
    route = nullptr;
    label.clear();
    unknown.clear();
    placed.clear();
    regions.clear();
    reports_unknown = false;
    encoding = 0;
    trace = 0;
    if (capacity > kKeptWords) {
      words.reset();
      capacity = 0;
    }
    if (id.capacity() > kKeptText) std::string().swap(id);
    if (!message.empty()) std::string().swap(message);
    recorded.clear();
    if (recorded.capacity() > kKeptMessage) std::string().swap(recorded);
  }

 private:
  static constexpr std::int64_t kLeastCompressed = 1024;  // _LEAST_BYTES of compression.py
  static constexpr std::int64_t kKeptWords = 512;
  static constexpr std::size_t kKeptText = 256, kKeptMessage = 64 << 10;
};

}  // namespace sharded_infer::call
