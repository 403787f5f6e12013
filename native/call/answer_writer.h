// Scores as a serialized answer; `InferWriter` and `PredictWriter` of serving/protocol/ are the
// references.
#pragma once
#include <vector>

#include "held_call.h"

namespace sharded_infer::calls {

// The scores of one output of a batch.
struct Scores {
  const float* values;   // [B] or [B, columns]
  std::int64_t columns;  // 0: one for each sample
};

// Messages, one after another.
class AnswerWriter {
 public:
  // A ModelInferResponse with the scores of `samples` samples from `first`.
  void infer(const HeldCall& call, const Scores* scores, std::int64_t first, std::int64_t samples);
  // A PredictResponse; `seconds`: decoding, queue, lookups and tower.
  void predict(const HeldCall& call, const Scores* scores, std::int64_t first, std::int64_t samples,
               const float seconds[4]);

  const std::vector<std::uint8_t>& messages() const { return messages_; }

 private:
  void varint(std::uint64_t value);
  void number(int field, std::uint64_t value);
  void header(int field, std::uint64_t bytes);
  void bytes(int field, const void* data, std::size_t size);
  void text(int field, const std::string& text);
  void append(const void* data, std::size_t size);

  std::vector<std::uint8_t> messages_;
};

}  // namespace sharded_infer::calls
