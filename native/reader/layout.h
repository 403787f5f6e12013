// Shapes of a request's tensors to the layout of its batch.
#pragma once
#include "request.h"

namespace sharded_infer {

// Whether the shapes and datatypes of the tensors that came fit the model and each other.
bool lay_out(Request& request, std::int64_t inputs);

// Places of groups and dense inputs, in 8-byte words, by their numbers of bags, ids and rows.
void place(const Model& model, Layout& layout, std::int64_t* dense_at,
           const std::int64_t* dense_rows);

}  // namespace sharded_infer
