// The tensors of a predict request that is JSON alone.
#pragma once
#include <vector>

#include "header.h"
#include "request.h"

namespace sharded_infer {

class JsonTensors {
 public:
  // Reads a request; false for an unusual one: tensors are numbers or strings, in one list or by
  // rows, or in shared memory. Never accepts a request that `infer_request` refuses. Names point
  // into the JSON.
  bool read(Bytes json, JsonHeader& header);

  const std::vector<NamedTensor>& tensors() const { return tensors_; }
  // Of each tensor; none where it has data.
  const std::vector<Span>& spans() const { return spans_; }

 private:
  friend class JsonTensorVisitor;
  std::vector<NamedTensor> tensors_;
  std::vector<Span> spans_;
  std::vector<std::uint8_t> elements_;  // of all, one tensor after another
};

}  // namespace sharded_infer
