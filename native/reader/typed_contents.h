// Typed contents of a tensor (InferTensorContents) as raw contents.
#pragma once
#include <vector>

#include "input.h"

namespace sharded_infer {

// Appends the raw contents. False where there is a field of another datatype, or a number that its
// datatype cannot hold.
bool append_raw(Bytes contents, std::int32_t datatype, std::vector<std::uint8_t>& raw);

}  // namespace sharded_infer
