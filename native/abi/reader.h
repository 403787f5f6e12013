// Requests that compiled code reads; see reader/request.h.
//
// Functions that read say false for what is unusual or malformed: Python reads it then.
#pragma once
#include <cstdint>

#include "abi/exported.h"
#include "abi/model.h"

namespace sharded_infer {

struct Request;

// A registered region of system shared memory, in bytes from its object's start.
struct SharedRegion {
  const char* name;
  std::int64_t name_bytes;
  const char* path;  // of the object
  std::int64_t offset;
  std::int64_t byte_size;
  std::uint64_t device;  // the object's at registration, as `inode`
  std::uint64_t inode;
};

// One jagged batch; places are in 8-byte words of the memory that `Request::fill` is given.
struct Group {
  std::int64_t features;
  std::int64_t bags;  // a feature; 0: the group does not exist
  std::int64_t ids;   // by `scan` room for those that came, after `fill` those that stayed
  std::int64_t weighted;
  std::int64_t lengths_at, values_at, weights_at;
};

struct Layout {
  std::int64_t batch;
  std::int64_t words;        // of memory that `fill` needs
  std::int64_t ids_outside;  // that `fill` dropped or wrapped, and unknown raw ids
  std::int64_t at_once;
  std::int64_t gaps;  // -1 stands in place of ids in sequences
  Group groups[2];    // one bag a sample, one bag for all
};

// The parts of an input that lies in one memory.
struct InputParts {
  Layout layout;
  std::uint8_t* own;         // [features]: in the first group
  std::int64_t* dense_at;    // [dense]: in words
  std::int64_t* dense_rows;  // [dense]
  std::int64_t* unknown;     // [mapped]: by `fill`, unknown raw ids; null: of a batch
};

constexpr std::int64_t kMaxOutputs = 16;

// A text as a part of the message.
struct Text {
  std::int64_t start;
  std::int64_t size;
};

// Where an output goes in shared memory.
struct OutputPlace {
  Text region;  // empty: it stays in the answer
  std::int64_t offset;
  std::int64_t byte_size;
};

// A request without its inputs.
struct Header {
  Text name, version, id;
  std::int64_t priority;         // 0: not given
  std::int64_t timeout_us;       // 0: not given
  std::int64_t reports_unknown;  // the answer has unknown ids by table
  // The routing key's bytes, or a number that is the key; neither: none is given.
  Text key;
  std::int64_t key_is_number;
  std::int64_t key_number;
  std::int64_t output_count;
  Text outputs[kMaxOutputs];
  OutputPlace places[kMaxOutputs];
};

extern "C" {

// Headers of a ModelInferRequest, whose inputs may be malformed, and of a PredictRequest.
EXPORTED_KEEPING_GIL bool sharded_infer_read_header(const std::uint8_t message[],
                                                    std::int64_t bytes, Header* header);
EXPORTED_KEEPING_GIL bool sharded_infer_read_predict_header(const std::uint8_t message[],
                                                            std::int64_t bytes, Header* header);

// The memory of one decoding at a time. The model must outlive it.
EXPORTED_KEEPING_GIL Request* sharded_infer_request_create(const Model* model);
EXPORTED_KEEPING_GIL void sharded_infer_request_destroy(Request* request);
EXPORTED_KEEPING_GIL const InputParts* sharded_infer_request_parts(const Request* request);

// See `Request`; the bytes must stay until `fill` is done.
EXPORTED_BOTH_WAYS bool sharded_infer_scan(Request* request, const std::uint8_t message[],
                                           std::int64_t bytes);
EXPORTED_BOTH_WAYS bool sharded_infer_scan_predict(Request* request, const std::uint8_t message[],
                                                   std::int64_t bytes);

// It also counts the unknown ids.
EXPORTED_BOTH_WAYS bool sharded_infer_fill(Request* request, std::int64_t out[]);
}

}  // namespace sharded_infer
