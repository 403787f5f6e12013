// Scores as serialized answers.
// https://protobuf.dev/programming-guides/encoding/
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "call.h"

namespace sharded_infer::call {

// The scores of a call in those of its batch, and what else its answer says.
struct CallScores {
  const Scores* outputs;  // [outputs], of the batch
  std::int64_t first;     // sample
  float seconds[4];       // decoding, queue, lookups and tower
  std::vector<const char*> default_tables;
  std::vector<std::pair<const char*, std::int64_t>> unknown_ids;
};

// The bytes of one output's scores for some samples.
std::string_view bytes_of(const Scores& scores, std::int64_t first, std::int64_t samples);

// The status and headers of an answer over HTTP, each with its line break. `json_bytes` are those
// that outputs in binary follow; 0: there are none.
std::string http_lines(std::int64_t json_bytes, std::int64_t bytes);

// Answers, one after another.
class AnswerWriter {
 public:
  // In the form of the call. Returns the bytes of the JSON that outputs in binary follow, or 0.
  std::int64_t write(const Call& call, const CallScores& scores);

  // The answer to a message of a stream that is refused.
  void stream_error(const Call& call, std::string_view words);

  const std::vector<std::uint8_t>& bytes() const { return bytes_; }

 private:
  void infer(const Call& call, const CallScores& scores);
  void infer_parameters(const Call& call, const CallScores& scores);
  void infer_output(const Call& call, const CallScores& scores, std::size_t at);
  void predict(const Call& call, const CallScores& scores);
  void stream(const Call& call, const CallScores& scores);
  void final_parameter();
  std::int64_t json(const Call& call, const CallScores& scores);

  void varint(std::uint64_t value);
  void number(int field, std::uint64_t value);
  void header(int field, std::uint64_t bytes);
  std::size_t open(int field);
  void close(std::size_t begin);
  void field(int field, std::string_view bytes);
  void string_parameter(int field, std::string_view key, std::string_view value);
  void number_parameter(int field, std::string_view key, std::int64_t value);
  void append(std::string_view bytes) { bytes_.insert(bytes_.end(), bytes.begin(), bytes.end()); }
  void json_text(std::string_view text);
  void json_member(const char* name, std::string_view text);
  void json_scores(const float* values, std::uint64_t count);

  std::vector<std::uint8_t> bytes_;
};

}  // namespace sharded_infer::call
