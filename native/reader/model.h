// Lookups in a model's inputs; see abi/model.h.
#pragma once
#include "raw_ids.h"
#include "base/wire.h"

#include <cstring>

namespace sharded_infer {

inline std::int64_t Model::inputs() const { return 3 * sparse + dense + 3 + whole_lengths; }
inline std::int64_t Model::all_at_once() const { return 3 * sparse + dense; }
inline bool Model::in_sequence(std::int64_t feature) const { return firsts[sources[feature]] >= 0; }

inline std::int64_t Model::numbers_of(std::int64_t input) const {
  return input < 3 * sparse && input % 3 == 0 ? numbers[input / 3] : 0;
}

inline std::int64_t Model::values_of_id(std::int64_t source) const {
  return numbers[source] > 0 ? numbers[source] : 1;
}

inline bool Model::takes_strings(std::int64_t input) const {
  return input < 3 * sparse && input % 3 == 0 && string_hashes[input / 3] >= 0;
}

inline bool Model::is_named(std::int64_t input) const {
  return name_starts[input] < name_starts[input + 1];
}

inline bool Model::has_name(std::int64_t input, Bytes name) const {
  const std::int64_t start = name_starts[input];
  return name_starts[input + 1] - start == name.size &&
         std::memcmp(names + start, name.data, name.size) == 0;
}

// Words multiplied and mixed: names are the model's own, so nobody can choose collisions.
inline std::uint64_t hash_name(Bytes name) {
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

inline std::int64_t Model::slot_of(Bytes name) const {
  std::int64_t slot = static_cast<std::int64_t>(hash_name(name)) & slot_mask;
  while (slots[slot] >= 0 && !has_name(slots[slot], name)) slot = (slot + 1) & slot_mask;
  return slot;
}

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
