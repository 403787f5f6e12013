// A request's decoding: where its tensors are, and how they are laid out for the model.
//
//   scan: read the message; match names and contents; check datatypes and shapes;
//         the batch is the largest number of samples, all others are it or 1;
//         features of 1 sample, and absent ones beside such, go to a group that all samples share;
//         of a sequence all inputs came, or none
//   fill: for each group and feature: lengths as int64, not negative, with the right sum;
//         ids as int64, strings hashed, raw ones mapped to rows (raw_ids.h);
//         others after steps; outside their table they are refused, dropped or wrapped;
//         without the table's padding; in sequences -1 takes the place of what is left out;
//         lengths of a sequence's inputs are equal; the bits of its numbers;
//         weights, or ones; then the dense inputs
//
// This is what `RequestReader` and `InputPolicy` do; what they would refuse is never accepted here.
#pragma once
#include <algorithm>
#include <vector>

#include "abi/reader.h"
#include "input.h"
#include "model.h"

namespace sharded_infer {

class Regions;

// A tensor that came by itself, in JSON.
struct NamedTensor {
  const std::uint8_t* name;
  std::int64_t name_bytes;
  const std::uint8_t* data;
  std::int64_t data_bytes;
  Datatype datatype;
  std::int32_t rank;
  std::int64_t sizes[kMaxRank];
};

struct Tensor {
  const std::uint8_t* data;
  std::int64_t bytes;
  std::int64_t elements;
  std::int64_t sizes[2];  // of a sequence's numbers: of the ids that they come with
  std::int32_t rank;
  std::int32_t datatype;
};

// Memory of one decoding at a time.
struct Request : InputParts {
  explicit Request(const Model& model)
      : InputParts(),
        model(&model),
        most_inputs(model.max_inputs),
        tensors(std::size_t(model.inputs())),
        present(tensors.size()),
        order(tensors.size()),
        contents(tensors.size()),
        copied_bytes(tensors.size()),
        successors(tensors.size() + 1, -1),
        starts(std::size_t(model.sparse)),
        own_(std::size_t(model.features)),
        dense_at_(std::size_t(model.dense)),
        dense_rows_(dense_at_.size()),
        unknown_(std::size_t(model.mapped)) {
    own = own_.data();
    dense_at = dense_at_.data();
    dense_rows = dense_rows_.data();
    unknown = unknown_.data();
  }
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;

  const Model* const model;
  std::int64_t most_inputs;                // tensors of a message
  std::vector<Tensor> tensors;             // [inputs]
  std::vector<std::uint8_t> present;       // [inputs]
  std::vector<std::int32_t> order;         // [inputs]: as they came
  std::vector<Bytes> contents;             // [inputs]: raw ones as they came
  std::vector<std::int64_t> copied_bytes;  // [inputs]: as they came; -1: contents are raw
  std::vector<std::uint8_t> copied;        // contents that are not raw, in the order of the inputs
  const Regions* regions = nullptr;      // of shared memory; null: inputs there are left to Python
  std::int64_t shared_bytes = 0;         // of inputs there
  std::vector<std::int32_t> successors;  // [inputs + 1]: the input that came after each the last
                                         // time, or -1
  std::vector<std::int64_t> starts;      // [sparse]: of its ids of all at once, or of its lengths
                                         // in a sequence

  // The input of a name, or -1; `previous` came before it, -1: none did. Clients send their inputs
  // in the same order each time.
  std::int32_t find(Bytes name, std::int32_t previous) {
    std::int32_t& expected = successors[previous + 1];
    if (expected >= 0 && model->has_name(expected, name)) return expected;
    const std::int32_t found = model->slots[model->slot_of(name)];
    if (found >= 0) expected = found;
    return found;
  }

  // The tensor with the lengths of a sparse input's bags: its own, or its sequence's; null: none.
  const Tensor* lengths_of(std::int64_t source) const {
    if (present[3 * source + 1]) return &tensors[3 * source + 1];
    const std::int32_t whole = model->lengths[source];
    return whole >= 0 && present[whole] ? &tensors[whole] : nullptr;
  }

  // Whether the message, a ModelInferRequest, is usual and its shapes fit; then `layout` says what
  // is needed.
  bool scan(Bytes message);
  // As `scan`, of a PredictRequest.
  bool scan_predict(Bytes message);
  // As `scan`, of JSON and the tensors' bytes behind it, in the order of the inputs.
  bool scan_body(Bytes body, std::int64_t json_bytes);
  // As `scan`, of tensors with data, or with spans in shared memory.
  bool scan_tensors(const NamedTensor* named, std::int64_t count, const Span* spans = nullptr);
  // Whether its lengths and ids fit too; `out` has `layout.words` words.
  bool fill(std::int64_t* out);
  // Frees much memory of `copied`.
  void trim() {
    if (copied.capacity() > kKeptBytes) std::vector<std::uint8_t>().swap(copied);
  }
  // Adds the unknown ids to the model's counts, once the request is read for good.
  void count_unknown() const;

 private:
  static constexpr std::size_t kKeptBytes = 1 << 16;

  void begin() {
    std::fill(present.begin(), present.end(), std::uint8_t{0});
    copied.clear();
    shared_bytes = 0;
  }

  std::vector<std::uint8_t> own_;
  std::vector<std::int64_t> dense_at_, dense_rows_, unknown_;
};

}  // namespace sharded_infer
