// Headers of requests.
#pragma once
#include "abi/reader.h"
#include "base/wire.h"

namespace sharded_infer {

// Whether the message, a ModelInferRequest, is usual; of its inputs only the ends are looked at.
bool read_header(Bytes message, Header& header);
// As `read_header`, of a PredictRequest.
bool read_predict_header(Bytes message, Header& header);
// As `read_header`, of JSON whose tensors are in binary.
bool read_json_header(Bytes json, JsonHeader& header);

}  // namespace sharded_infer
