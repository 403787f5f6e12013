// What a request asks for, without its inputs.
#pragma once
#include "base/wire.h"

namespace sharded_infer {

constexpr std::int64_t kMaxOutputs = 16;

// A text as a part of the message; int64, so that Python reads the header as numbers.
struct Text {
  std::int64_t start = 0;
  std::int64_t size = 0;
};

struct Header {
  Text name, version, id;
  std::int64_t priority = 0;    // 0: not given
  std::int64_t timeout_us = 0;  // 0: not given
  // The routing key's bytes, or a number that is the key; neither: none is given.
  Text key;
  std::int64_t key_is_number = 0;
  std::int64_t key_number = 0;
  std::int64_t output_count = 0;
  Text outputs[kMaxOutputs];
};

// As `Header`, of a request in JSON; model and version are not in it.
struct JsonHeader {
  Header header;
  std::int64_t binary_default = 0;  // whether outputs that say nothing are wanted in binary
  std::int64_t binary_said = 0;     // bit i: output i says it
  std::int64_t binary_wanted = 0;   // bit i: what it says
};

// Whether the message, a ModelInferRequest, is usual; of its inputs only the ends are looked at.
bool read_header(Bytes message, Header& header);
// As `read_header`, of a PredictRequest.
bool read_predict_header(Bytes message, Header& header);
// As `read_header`, of JSON whose tensors are in binary.
bool read_json_header(Bytes json, JsonHeader& header);

}  // namespace sharded_infer
