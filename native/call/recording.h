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

struct RecordedCall {
  Route* route;
  Form form;  // of the message
  std::int64_t json_bytes;
  std::int64_t samples;
  std::int32_t code;
  double seconds[5];
  std::string id, message;
  std::vector<float> scores;
  std::vector<std::int64_t> score_counts;  // [outputs]; empty: it failed

  std::int64_t bytes() const {
    return std::int64_t(sizeof *this + id.size() + message.size() + 4 * scores.size());
  }
};

// Calls that a thread reads, and the arrays of those that were read last.
struct RecordedBatch {
  std::vector<RecordedCall> calls;  // those of one route together
  std::size_t read = 0;             // of them
  std::vector<std::int64_t> samples, id_ends, bag_ends, lengths, value_ends, values, dense_ends,
      score_ends;
  std::vector<std::int32_t> codes;
  std::vector<double> seconds;
  std::vector<float> weights, dense, scores;
  std::string ids;
};

// Reads the next calls of one route, up to a bound of bytes; their messages are freed.
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
  void add(Call& call, std::int32_t code, const double (&seconds)[5], const Scores* scores,
           std::int64_t first);
  std::unique_ptr<RecordedBatch> take();

  std::int64_t dropped() const { return dropped_; }

 private:
  std::uint64_t bound_ = 0;
  std::int64_t most_bytes_ = 0, bytes_ = 0, dropped_ = 0;
  std::vector<RecordedCall> waiting_;
};

}  // namespace sharded_infer::call
