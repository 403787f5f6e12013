// What decoding needs to know of a model: prepared once, read by all threads.
#pragma once
#include "raw_ids.h"
#include "base/wire.h"

#include <cstring>

namespace sharded_infer {

enum Policy : std::int32_t { kRefuse = 0, kIgnore = 1, kModulo = 2 };

// Inputs a request may have are numbered: sparse input s is 3s, its lengths 3s + 1, its weights
// 3s + 2; then the dense inputs; then sparse.values, sparse.lengths and sparse.weights; then
// lengths of whole sequences, but those with a sparse input's name, whose lengths they are. Weights
// without a name are left to the portable reader. A
// feature is a sparse input in one of its tables: several may be copies of one input. The numbers
// of a sequence are a sparse input too: the bits of each are an id of a table of 2^32 rows.
struct Model {
  std::int64_t features;
  std::int64_t sparse;  // inputs; numbered as features first have them
  std::int64_t dense;
  std::int64_t max_batch;
  std::int64_t max_ids;               // of all features
  std::int64_t most_copies;           // features of one input, at most
  const std::int32_t* sources;        // [features]: the sparse input
  const std::uint8_t* required;       // [sparse]
  const std::int32_t* string_hashes;  // [sparse]: a `StringHash`, or -1: no strings
  const std::uint64_t* string_seeds;  // [sparse]
  const std::int64_t* rows;           // [features]
  const std::int32_t* policies;       // [features]
  const std::int64_t* paddings;       // [features]: an id that is left out, or -1
  const IdMap* const* id_maps;        // [features]: null where ids are rows
  std::int64_t mapped;                // tables whose unknown ids are counted
  double* unknown_ids;                // [mapped]: the counts, which other threads add to
  const std::int64_t* widths;         // [dense]
  const std::uint8_t* names;          // all names, one after another
  const std::int64_t* name_starts;    // [inputs + 1]
  std::int64_t slot_mask;             // slots - 1; slots is a power of two, above the inputs
  std::int32_t* slots;                // [slots]: an input, or -1
  std::int64_t whole_lengths;         // inputs that are lengths of whole sequences
  const std::int32_t* lengths;        // [sparse]: the input with its sequence's lengths, or -1
  const std::int32_t* firsts;         // [sparse]: the first one of its sequence, or -1
  const std::int64_t* numbers;        // [sparse]: numbers that come with an id, or 0: it has ids
  const std::int64_t* shortest;       // [sparse]: the fewest ids of a sample, of a sequence
  std::int64_t has_numbers;           // whether any has
  const std::int64_t* longest;        // [features]: of a sequence's first feature, its longest
                                      // length; else 0
  const std::uint8_t* computed_once;  // [features]: the tower computes its sequence once a request
  std::int64_t has_sequences;

  std::int64_t inputs() const { return 3 * sparse + dense + 3 + whole_lengths; }
  std::int64_t all_at_once() const { return 3 * sparse + dense; }

  // Whether a feature's rows are not pooled.
  bool in_sequence(std::int64_t feature) const { return firsts[sources[feature]] >= 0; }

  // How many numbers come with an id of an input, or 0.
  std::int64_t numbers_of(std::int64_t input) const {
    return input < 3 * sparse && input % 3 == 0 ? numbers[input / 3] : 0;
  }

  // Values of a sparse input for each of its lengths' ids.
  std::int64_t values_of_id(std::int64_t source) const {
    return numbers[source] > 0 ? numbers[source] : 1;
  }

  // Whether an input may be BYTES.
  bool takes_strings(std::int64_t input) const {
    return input < 3 * sparse && input % 3 == 0 && string_hashes[input / 3] >= 0;
  }

  bool is_named(std::int64_t input) const { return name_starts[input] < name_starts[input + 1]; }

  bool has_name(std::int64_t input, Bytes name) const {
    const std::int64_t start = name_starts[input];
    return name_starts[input + 1] - start == name.size &&
           std::memcmp(names + start, name.data, name.size) == 0;
  }

  // The slot that has a name's input, or the free one where it would be.
  std::int64_t slot_of(Bytes name) const {
    std::int64_t slot = static_cast<std::int64_t>(hash(name)) & slot_mask;
    while (slots[slot] >= 0 && !has_name(slots[slot], name)) slot = (slot + 1) & slot_mask;
    return slot;
  }

 private:
  // Words multiplied and mixed: names are the model's own, so nobody can choose collisions.
  static std::uint64_t hash(Bytes name) {
    constexpr std::uint64_t kFactor = 0x9e3779b97f4a7c15u;
    std::uint64_t mixed = static_cast<std::uint64_t>(name.size);
    for (std::int64_t at = 0; at < name.size; at += 8) {
      std::uint64_t word = 0;
      const std::int64_t left = name.size - at;
      std::memcpy(&word, name.data + at, left < 8 ? left : 8);
      mixed = (mixed ^ word) * kFactor;
      mixed ^= mixed >> 29;
    }
    return mixed;
  }
};

// Fills the slots, which are all -1.
inline void index_names(const Model& model) {
  for (std::int64_t input = 0; input < model.inputs(); ++input) {
    if (!model.is_named(input)) continue;
    const std::int64_t start = model.name_starts[input];
    const Bytes name{model.names + start, model.name_starts[input + 1] - start};
    model.slots[model.slot_of(name)] = static_cast<std::int32_t>(input);
  }
}

}  // namespace sharded_infer
