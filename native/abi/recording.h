// Predict calls that are recorded; see call/recording.h.
#pragma once
#include <cstdint>

#include "abi/exported.h"
#include "abi/reader.h"

namespace sharded_infer::call {

class Calls;
class Route;
struct RecordedBatch;

// Numbers of each call, one call after another.
struct RecordedLists {
  const std::int64_t* ends;  // [calls]
  const void* numbers;
};

// Calls of one version in arrays.
struct RecordedCalls {
  std::int64_t calls;
  std::int64_t unread;               // calls that are not in the arrays: their messages are unusual
  const std::int64_t* samples;       // [calls]
  const std::int64_t* ids_outside;   // [calls]: unknown ids, or outside of their tables
  const std::int32_t* has_defaults;  // [calls]: not 0: default rows took part in the scores
  const std::int32_t* codes;         // [calls]: of gRPC; 0: answered
  const double* seconds;  // [calls, 5]: of the end since 1970, decoding, queue, lookup, tower
  RecordedLists ids;      // the calls' own ids, as text
  const RecordedLists* lengths;  // [features]: int64, of one bag, or one for each sample
  const RecordedLists* values;   // [features]: int64
  const RecordedLists* weights;  // [features]: fp32, as values; null: no call has any
  const RecordedLists* dense;    // [dense]: fp32, of one row, or one for each sample
  const RecordedLists* scores;   // [outputs]: fp32; none of a call that failed
};

extern "C" {

// Records calls whose routing key, id or chance is at most `bound`, of 2^64, while less than
// `most_bytes` wait.
EXPORTED_KEEPING_GIL void sharded_infer_recording_set(Calls* calls, std::uint64_t bound,
                                                      std::int64_t most_bytes);
// Calls that were dropped so far, because too many bytes waited.
EXPORTED_KEEPING_GIL std::int64_t sharded_infer_recording_dropped(const Calls* calls);

// Takes the waiting calls; null: none waits. `finish` lets go of them and of their routes.
EXPORTED_KEEPING_GIL RecordedBatch* sharded_infer_recording_take(Calls* calls);
EXPORTED_KEEPING_GIL void sharded_infer_recording_finish(Calls* calls, RecordedBatch* batch);

// The route of the calls that are read next; null: all were read.
EXPORTED_KEEPING_GIL Route* sharded_infer_recording_route(const RecordedBatch* batch);

// Reads some calls of that route anew, by a model of its inputs as they are sent. The arrays stay
// until the next reading.
EXPORTED void sharded_infer_recording_read(RecordedBatch* batch, Request* request,
                                           RecordedCalls* recorded);
}

}  // namespace sharded_infer::call
