// Request::scan, see request.h: bytes to tensors by name.
#include "envelope.h"
#include "layout.h"
#include "request.h"

namespace sharded_infer {
namespace {

class TensorVisitor {
 public:
  explicit TensorVisitor(Request& request) : request_(request), model_(*request.model) {}

  bool text(std::uint32_t, Bytes) { return true; }
  bool parameter(const Parameter&) { return true; }
  bool output(Bytes) { return true; }

  bool input(Bytes bytes) {
    Input input;
    if (!read_input(bytes, input)) return false;
    const std::int32_t found = request_.find(input.name, previous_);
    if (found < 0 || request_.present[found]) return false;
    request_.present[found] = 1;
    request_.order[inputs_++] = found;
    previous_ = found;
    Tensor& tensor = request_.tensors[found];
    tensor.elements = input.elements();
    tensor.sizes[0] = input.sizes[0];
    tensor.sizes[1] = input.sizes[1];
    tensor.rank = input.rank;
    tensor.datatype = input.datatype;
    return true;
  }

  bool contents(Bytes bytes) {
    if (contents_ == model_.inputs()) return false;
    request_.contents[contents_++] = bytes;
    return true;
  }

  // Whether each input has contents of its shape's size.
  bool match() {
    if (inputs_ == 0 || inputs_ != contents_) return false;
    for (std::int64_t i = 0; i < inputs_; ++i) {
      Tensor& tensor = request_.tensors[request_.order[i]];
      const Bytes bytes = request_.contents[i];
      // The product with the size of an item cannot overflow.
      if (tensor.elements >= kMaxSize) return false;
      if (bytes.size != tensor.elements * item_bytes(tensor.datatype)) return false;
      tensor.data = bytes.data;
    }
    return true;
  }

  std::int64_t inputs() const { return inputs_; }

 private:
  Request& request_;
  const Model& model_;
  std::int64_t inputs_ = 0;
  std::int64_t contents_ = 0;
  std::int32_t previous_ = -1;
};

}  // namespace

bool Request::scan(Bytes message) {
  std::memset(present, 0, model->inputs());
  if (message.size >= kMaxSize) return false;
  TensorVisitor visitor(*this);
  return visit_request(message, visitor) && visitor.match() && lay_out(*this, visitor.inputs());
}

}  // namespace sharded_infer
