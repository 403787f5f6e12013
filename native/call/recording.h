// Calls whose messages and scores wait to be written to a recording.
//
//   chooses  by the routing key of a call, else its id, else chance
//   add      copies the message and the scores of a call that ended
//   take     all that wait, for a thread that reads the messages anew
#pragma once
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "abi/recording.h"
#include "call.h"
#include "message.h"

namespace sharded_infer::call {

// How a call ended.
struct RecordedAnswer {
  std::int32_t code, has_defaults;
  double seconds[5];  // as RecordedCalls::seconds
  std::int64_t ids_outside;
};

// A call, whose text and scores lie in its batch.
struct RecordedCall {
  Route* route;
  Form form;  // of the message
  std::int64_t json_bytes, samples;
  RecordedAnswer answer;
  std::size_t id, message, end;      // where they begin, and where the message ends
  std::size_t scores, score_counts;  // where they begin; none of a call that failed
};

// Numbers of each call, one call after another.
template <class Number>
struct Column {
  std::vector<std::int64_t> ends;
  std::vector<Number> numbers;

  void add(const Number* from, std::int64_t count) {
    // Most bags are short.
    for (std::int64_t at = 0; at < count; ++at) numbers.push_back(from[at]);
    ends.push_back(std::int64_t(numbers.size()));
  }
  RecordedLists lists() const { return {ends.data(), numbers.data()}; }
};

// Calls that a thread reads, and the arrays of those that were read last.
struct RecordedBatch {
  std::vector<RecordedCall> calls;  // those of one route together
  std::string text;                 // their ids and messages
  std::vector<float> score_values;
  std::vector<std::int64_t> score_counts;  // [answered calls, outputs]
  std::size_t read = 0;                    // of the calls
  std::vector<std::int64_t> samples, ids_outside;
  std::vector<std::int32_t> codes, has_defaults;
  std::vector<double> seconds;
  Column<char> ids;
  std::vector<Column<std::int64_t>> lengths, values;  // [features]
  std::vector<Column<float>> weights, dense, scores;  // [features], [dense], [outputs]
  bool weighted = false;
  std::vector<RecordedLists> lists[5];

  std::int64_t waiting_bytes() const {
    return std::int64_t(calls.size() * sizeof(RecordedCall) + text.size() +
                        4 * score_values.size() + 8 * score_counts.size());
  }
};

// Reads the next calls of one route, up to a bound of bytes.
void read(RecordedBatch& batch, Request& request, RecordedCalls& recorded);

class Recording {
 public:
  void set(std::uint64_t bound, std::int64_t most_bytes) {
    bound_ = bound;
    most_bytes_ = most_bytes;
  }
  bool is_on() const { return bound_ != 0; }
  // `chance` is that of a call without a routing key and an id.
  bool chooses(Bytes message, const Header& header, std::uint64_t chance) const;
  bool chooses(std::string_view id, std::uint64_t chance) const;
  // Of a call that ended: `first` is its first sample among `scores`, null for one that failed.
  void add(Call& call, const RecordedAnswer& answer, const Scores* scores, std::int64_t first);
  std::unique_ptr<RecordedBatch> take();
  // The memory of the batch is that of a later one, unless nothing waits at the next `take`.
  void finish(std::unique_ptr<RecordedBatch> batch);

  std::int64_t dropped() const { return dropped_; }

 private:
  std::uint64_t bound_ = 0;
  std::int64_t most_bytes_ = 0, dropped_ = 0;
  std::unique_ptr<RecordedBatch> waiting_, spare_;
};

}  // namespace sharded_infer::call
