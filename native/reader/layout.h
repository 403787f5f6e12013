// Shapes of a request's tensors to the layout of its batch.
#pragma once
#include "request.h"

namespace sharded_infer {

// Whether the shapes and datatypes of the tensors that came fit the model and each other.
bool lay_out(Request& request, std::int64_t inputs);

}  // namespace sharded_infer
