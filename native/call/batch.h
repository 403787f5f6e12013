// Calls of one route that run together, or that left the queue for one reason.
#pragma once
#include "answer_writer.h"
#include "merge.h"

namespace sharded_infer::call {

struct Batch {
  BatchInfo info{};
  std::vector<Call*> calls;
  scheduler::Queue* queue = nullptr;
  std::int64_t number = 0;  // of the scheduler; 0: it holds no slot
  double cpu_started = 0.0;
  MergedInput input;
  AnswerWriter writer;
  std::vector<std::size_t> ends;         // of the answers
  std::vector<std::int64_t> json_bytes;  // of the answers, as LongAnswer's
  std::vector<std::uint8_t> failed;  // [calls]: its outputs could not be written to shared memory
  std::vector<std::int64_t> failed_at;  // positions of such calls
  std::vector<AnsweredRequest> counted;
  std::vector<LongAnswer> answers;
};

}  // namespace sharded_infer::call
