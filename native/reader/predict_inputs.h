// The inputs of a PredictRequest as tensors.
#pragma once
#include "request.h"

namespace sharded_infer {

// A field's first occurrence only: more would be merged, which no usual client relies on.
inline bool first_time(std::uint32_t& seen, std::uint32_t field) {
  const bool first = !(seen >> field & 1);
  seen |= 1u << field;
  return first;
}

struct SparseFeature;
struct DenseInput;

class PredictInputs {
 public:
  PredictInputs(Request& request, Bytes message)
      : request_(request), model_(*request.model), message_bytes_(std::size_t(message.size)) {}

  // Reads what all candidates share (`user`), or what each has.
  bool read(Bytes message, bool user);

  std::int64_t inputs() const { return inputs_; }

  // True if dense inputs of candidates have a row for each; a single row belongs to the user.
  // Numbers that were divided evenly were so among all candidates.
  bool has_row_for_each() const {
    return (candidates_ <= 1 || !single_row_) && (divided_ == 0 || divided_ == candidates_);
  }

 private:
  bool add(const SparseFeature& feature, bool user);
  bool set_strings(Tensor& tensor, const SparseFeature& feature);
  static bool shape_user(Tensor& ids, const SparseFeature& feature);
  bool shape_candidates(Tensor& ids, const SparseFeature& feature, std::int32_t found);
  bool add(const DenseInput& input, bool user);
  bool add_numbers(std::int32_t found, const DenseInput& input, bool user);
  static bool set(Tensor& tensor, Bytes bytes, std::int32_t datatype);
  bool take(std::int32_t input);
  std::int32_t find(Bytes name);

  Request& request_;
  const Model& model_;
  const std::size_t message_bytes_;
  std::int64_t inputs_ = 0;
  std::int64_t parts_ = 0;       // features and dense inputs
  std::int64_t candidates_ = 0;  // bags of the candidates' feature that has most
  bool single_row_ = false;      // a dense input of the candidates has but one
  std::int64_t divided_ = 0;     // candidates that numbers were divided among, or 0
  std::int32_t previous_ = -1;
};

}  // namespace sharded_infer
