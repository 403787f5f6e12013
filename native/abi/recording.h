// Predict calls that are recorded; see call/recording.h.
#pragma once
#include <cstdint>

#include "abi/exported.h"
#include "abi/reader.h"

namespace sharded_infer::call {

class Calls;
class Route;
struct RecordedBatch;

// Calls of one version in arrays; ends run over all of an array.
struct RecordedCalls {
  std::int64_t calls;
  std::int64_t unread;          // calls that are not in the arrays: their messages are unusual
  const std::int64_t* samples;  // [calls]
  const std::int32_t* codes;    // [calls]: of gRPC; 0: answered
  const double* seconds;        // [calls, 5]: of the end since 1970, decoding, queue, lookup, tower
  const void* ids;              // the calls' own ids, as text
  const std::int64_t* id_ends;  // [calls]
  const std::int64_t* bag_ends;  // [features, calls], of lengths; one bag, or one for each sample
  const std::int64_t* lengths;
  const std::int64_t* value_ends;  // [features, calls], of values
  const std::int64_t* values;
  const float* weights;            // as values; null: no call has any
  const std::int64_t* dense_ends;  // [dense, calls], of numbers; one row, or one for each sample
  const float* dense;
  const std::int64_t* score_ends;  // [outputs, calls], of scores; none of a call that failed
  const float* scores;
};

extern "C" {

// Records calls whose routing key, id or chance is at most `bound`, of 2^64, while less than
// `most_bytes` wait.
EXPORTED_KEEPING_GIL void sharded_infer_recording_set(Calls* calls, std::uint64_t bound,
                                                      std::int64_t most_bytes);
// Calls that were dropped so far, because too many bytes waited.
EXPORTED_KEEPING_GIL std::int64_t sharded_infer_recording_dropped(const Calls* calls);

// Takes the waiting calls; null: none waits. `finish` frees them, and lets go of their routes.
EXPORTED_KEEPING_GIL RecordedBatch* sharded_infer_recording_take(Calls* calls);
EXPORTED_KEEPING_GIL void sharded_infer_recording_finish(RecordedBatch* batch);

// The route of the calls that are read next; null: all were read.
EXPORTED_KEEPING_GIL Route* sharded_infer_recording_route(const RecordedBatch* batch);

// Reads some calls of that route anew, by a model of its inputs as they are sent. The arrays stay
// until the next reading.
EXPORTED void sharded_infer_recording_read(RecordedBatch* batch, Request* request,
                                           RecordedCalls* recorded);
}

}  // namespace sharded_infer::call
