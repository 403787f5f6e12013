// Headers of requests.
#pragma once
#include <cstddef>
#include <cstring>

#include "abi/reader.h"
#include "parameter.h"

namespace sharded_infer {

// Header of a request in JSON, without model and version.
struct JsonHeader {
  Header header;
  std::int64_t binary_default;  // outputs that say nothing are wanted in binary
  std::int64_t binary_said;     // bit i: output i says it
  std::int64_t binary_wanted;   // bit i: its choice
};

// Forgets what a header says. Its lists, of a kilobyte, stay: as many entries count as it has.
inline void clear(Header& header) {
  std::memset(static_cast<void*>(&header), 0, offsetof(Header, outputs));
}

inline void clear(JsonHeader& json) {
  clear(json.header);
  json.binary_default = json.binary_said = json.binary_wanted = 0;
}

// Whether the message, a ModelInferRequest, is usual; of its inputs only the ends are looked at.
bool read_header(Bytes message, Header& header);
// As `read_header`, of a PredictRequest.
bool read_predict_header(Bytes message, Header& header);
// As `read_header`, of JSON whose tensors are in binary.
bool read_json_header(Bytes json, JsonHeader& header);

// Adds an output, whose name and span are parts of the text. False for too many, or one that goes
// to two places.
bool add_output(Bytes text, Bytes name, const Span& span, Header& header);

}  // namespace sharded_infer
