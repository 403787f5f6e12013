// A predict call's message as a transport hands it over, before its inputs are read.
#pragma once
#include <string_view>

#include "abi/calls.h"
#include "call.h"
#include "reader/json_tensors.h"
#include "transport/settings.h"

namespace sharded_infer::call {

struct Message {
  Form form = kNoForm;
  Bytes bytes{};
  std::int64_t json_bytes = 0;  // of `bytes`, of a body whose tensors follow in binary; else 0
  std::string_view model, version;
  std::int32_t encoding = transport::kIdentity;  // that the answer may be compressed in
  JsonHeader header;  // of other forms without its numbers of outputs in binary
};

// Reads a call's message up to its inputs; false for an unusual one, which Python reads. A usual
// head of HTTP has a plain path, no compressed body and no weights of encodings. Tensors in JSON go
// to `tensors`.
bool read_message(Form form, const transport::Event& event, Message& message, JsonTensors& tensors);

// Reads the inputs of a message, or the `tensors` of one that is JSON alone, into a call.
bool read_inputs(const Message& message, const JsonTensors& tensors, Request& decoding, Call& call);

}  // namespace sharded_infer::call
