// The tensors of a predict request that is JSON alone.
#pragma once
#include <vector>

#include "header.h"
#include "request.h"

namespace sharded_infer {

class JsonTensors {
 public:
  // Whether the request is usual: its tensors are numbers or strings, row by row or in one list.
  // What `infer_request` would refuse is never accepted. The names stay those of the JSON.
  bool read(Bytes json, JsonHeader& header);

  const std::vector<NamedTensor>& tensors() const { return tensors_; }

 private:
  friend class JsonTensorVisitor;
  std::vector<NamedTensor> tensors_;
  std::vector<std::uint8_t> elements_;  // of all, one tensor after another
};

}  // namespace sharded_infer
