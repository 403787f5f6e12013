// Request::scan, scan_body and scan_tensors, see request.h: tensors by name.
#include "envelope.h"
#include "infer_json.h"
#include "layout.h"
#include "message_size.h"
#include "regions.h"
#include "request.h"
#include "typed_contents.h"
#include "base/strings.h"

namespace sharded_infer {
namespace {

// Whether bytes can be those of a tensor's elements.
bool fits(Bytes bytes, const Tensor& tensor) {
  if (tensor.datatype == kBytesType) return may_hold_strings(bytes, tensor.elements);
  return bytes.size == tensor.elements * item_bytes(tensor.datatype);
}

class TensorVisitor {
 public:
  // The message, where inputs may be typed or in shared memory.
  explicit TensorVisitor(Request& request, Bytes message = {})
      : request_(request), model_(*request.model), message_(message) {}

  bool text(std::uint32_t, Bytes) { return true; }
  bool parameter(const Parameter&) { return true; }
  bool output(Bytes, const Span&) { return true; }

  bool input(Bytes bytes) {
    Input input;
    return read_input(bytes, input) && take(input) &&
           (input.typed.data == nullptr || copy_typed(input)) &&
           (input.span.is_none() || copy_shared(input.span));
  }

  bool take(const Input& input) {
    const std::int32_t found = request_.find(input.name, previous_);
    if (found < 0 || request_.present[found] || inputs_ == request_.most_inputs) return false;
    if (input.datatype == kBytesType && !model_.takes_strings(found)) return false;
    request_.present[found] = 1;
    request_.copied_bytes[inputs_] = -1;
    request_.order[inputs_++] = found;
    previous_ = found;
    Tensor& tensor = request_.tensors[found];
    tensor.elements = input.elements();
    tensor.sizes[0] = input.sizes[0];
    tensor.sizes[1] = input.sizes[1];
    tensor.rank = input.rank;
    tensor.datatype = input.datatype;
    const std::int64_t numbers = model_.numbers_of(found);
    return numbers == 0 ? input.rank < kMaxRank : to_ids(tensor, numbers, input);
  }

  // Copies an input that has just been taken: a client may change it while it is read.
  bool copy_shared(const Span& span) {
    const Regions* regions = request_.regions;
    if (regions == nullptr || !is_within_limits()) return false;
    const Tensor& tensor = request_.tensors[request_.order[inputs_ - 1]];
    // The product cannot overflow.
    if (tensor.elements >= kMaxSize) return false;
    if (tensor.datatype != kBytesType &&
        span.bytes != tensor.elements * item_bytes(tensor.datatype))
      return false;
    if (span.bytes > regions->most_bytes() - request_.shared_bytes) return false;
    request_.shared_bytes += span.bytes;
    request_.copied_bytes[inputs_ - 1] = span.bytes;
    return regions->read(span, request_.copied);
  }

  bool contents(Bytes bytes) {
    if (contents_ == model_.inputs()) return false;
    request_.contents[contents_++] = bytes;
    return true;
  }

  // Whether each input has contents of its shape's size.
  bool match() {
    if (inputs_ == 0 || (is_typed_ && contents_ > 0)) return false;
    const std::uint8_t* copied = request_.copied.data();
    std::int64_t raw = 0;
    for (std::int64_t i = 0; i < inputs_; ++i) {
      Tensor& tensor = request_.tensors[request_.order[i]];
      const std::int64_t size = request_.copied_bytes[i];
      Bytes bytes;
      if (size >= 0) {
        bytes = {copied, size};
        copied += size;
      } else if (contents_ > 0) {  // else they are typed, and empty
        if (raw == contents_) return false;
        bytes = request_.contents[raw++];
      }
      // The product with the size of an item cannot overflow.
      if (tensor.elements >= kMaxSize) return false;
      if (!fits(bytes, tensor)) return false;
      tensor.data = bytes.data;
      tensor.bytes = bytes.size;
    }
    return raw == contents_;
  }

  std::int64_t inputs() const { return inputs_; }

 private:
  // Checks the limits of a message's parts (message_size.h), once.
  bool is_within_limits() {
    if (!is_counted_) is_counted_ = check_size(*model_.message_limits, message_) == kWithinLimits;
    return is_counted_;
  }

  bool copy_typed(const Input& input) {
    is_typed_ = true;
    if (!is_within_limits()) return false;
    const std::size_t begin = request_.copied.size();
    if (!append_raw(input.typed, input.datatype, request_.copied)) return false;
    request_.copied_bytes[inputs_ - 1] = std::int64_t(request_.copied.size() - begin);
    return true;
  }

  // Numbers of a sequence as ids: FP32 [B, L, numbers] or [N, numbers], or [B, L] or [N] of one.
  static bool to_ids(Tensor& tensor, std::int64_t numbers, const Input& input) {
    if (tensor.datatype != kFp32Type) return false;
    tensor.datatype = kUint32Type;
    if (numbers == 1 && input.rank < kMaxRank) return true;
    if (input.rank == 1 || input.sizes[input.rank - 1] != numbers) return false;
    tensor.rank = input.rank - 1;
    return true;
  }

  Request& request_;
  const Model& model_;
  const Bytes message_;
  bool is_typed_ = false;
  bool is_counted_ = false;
  std::int64_t inputs_ = 0;
  std::int64_t contents_ = 0;
  std::int32_t previous_ = -1;
};

class BodyVisitor {
 public:
  BodyVisitor(Request& request, Bytes binary) : tensors_(request), left_(binary) {}

  bool id(Bytes) { return true; }
  bool priority(std::int64_t) { return true; }
  bool timeout(std::int64_t) { return true; }
  bool key(Bytes) { return true; }
  bool key_number(std::int64_t) { return true; }
  bool unknown_ids(bool) { return true; }
  bool binary_outputs(bool) { return true; }
  bool output(Bytes, BinaryOutput, const Span&) { return true; }
  bool data(JsonReader&, const Input&) { return false; }

  bool input(const Input& input, std::int64_t bytes) {
    if (bytes > left_.size || !tensors_.take(input)) return false;
    if (!input.span.is_none()) return tensors_.copy_shared(input.span);
    if (!tensors_.contents({left_.data, bytes})) return false;
    left_.data += bytes;
    left_.size -= bytes;
    return true;
  }

  bool match() { return left_.size == 0 && tensors_.match(); }
  std::int64_t inputs() const { return tensors_.inputs(); }

 private:
  TensorVisitor tensors_;
  Bytes left_;
};

bool to_input(const NamedTensor& tensor, Input& input) {
  if (tensor.rank < 1 || tensor.rank > kMaxRank) return false;
  input.name = {tensor.name, tensor.name_bytes};
  input.datatype = tensor.datatype;
  for (std::int64_t i = 0; i < tensor.rank; ++i)
    if (!input.add_size(static_cast<std::uint64_t>(tensor.sizes[i]))) return false;
  return true;
}

}  // namespace

bool Request::scan_body(Bytes body, std::int64_t json_bytes) {
  begin();
  if (body.size >= kMaxSize || json_bytes < 0 || json_bytes > body.size) return false;
  BodyVisitor visitor(*this, {body.data + json_bytes, body.size - json_bytes});
  return visit_json({body.data, json_bytes}, visitor) && visitor.match() &&
         lay_out(*this, visitor.inputs());
}

bool Request::scan_tensors(const NamedTensor* named, std::int64_t count, const Span* spans) {
  begin();
  TensorVisitor visitor(*this);
  for (std::int64_t i = 0; i < count; ++i) {
    Input input;
    if (!to_input(named[i], input) || !visitor.take(input)) return false;
    const bool is_shared = spans != nullptr && !spans[i].is_none();
    if (!(is_shared ? visitor.copy_shared(spans[i])
                    : visitor.contents({named[i].data, named[i].data_bytes})))
      return false;
  }
  return visitor.match() && lay_out(*this, visitor.inputs());
}

bool Request::scan(Bytes message) {
  begin();
  if (message.size >= kMaxSize) return false;
  TensorVisitor visitor(*this, message);
  return visit_request(message, visitor) && visitor.match() && lay_out(*this, visitor.inputs());
}

}  // namespace sharded_infer
