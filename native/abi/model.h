// A model, as requests are read for it.
#pragma once
#include <cstdint>

#include "abi/exported.h"
#include "abi/ids.h"
#include "abi/message_size.h"

namespace sharded_infer {

struct Bytes;

// For ids outside their table.
enum Policy : std::int32_t { kRefuse = 0, kIgnore = 1, kModulo = 2, kPass = 3 };

// Of a step from an id to its row; the reference is sharded_infer/specs/id_steps.py.
enum IdOperation : std::int32_t {
  kAdd = 0,
  kMultiply = 1,
  kDivide = 2,
  kRemainder = 3,
  kAtLeast = 4,
  kAtMost = 5
};

// For raw ids that the index does not know; see reader/raw_ids.h.
enum Unknown : std::int64_t { kRefused = 0, kAbsent = 1, kSharedRow = 2, kHashedRow = 3 };

// The id map of one table.
struct IdMap {
  IdIndex index;             // without buckets: ids are hashed, or left raw
  const std::int32_t* mark;  // not 0: pages of the index's file were lost; null: no file
  const std::uint8_t* last;  // a byte of the file
  std::int64_t last_byte;    // its value, unless the file was cut
  Unknown unknown;
  const std::int64_t* shared_rows;  // [segments], relative to the id's part
  std::int64_t segments;            // of unknown ids: of shared rows, or buckets
  std::int64_t segment_ids;         // ids in each; 0: id modulo segments, of hashed rows
  std::int64_t bucket_rows;
  std::int64_t first_row;    // of a bucket: of its rows that unknown ids read
  std::int64_t hashed_rows;  // number of them
  std::int64_t divided;      // not 0: the id is hashed without its bucket
  std::int64_t counted;      // position of its count of unknown ids
  IdHash hash;
  std::uint64_t seed;
  std::uint64_t table_rows;          // of hashed ids; 0: ids are not hashed
  const std::uint64_t* part_hashes;  // [parts], the least of each part's ids
  const std::int64_t* part_rows;     // [parts], the first of each
  std::int64_t parts;                // 0: the table is not in parts
  const std::uint8_t* places;  // of an ordered table, its blocks (base/row_places.h); else null
  std::uint64_t placed;
  std::uint64_t placed_rows;  // of the ordered table
};

// Prepared once, read by all threads.
//
// Inputs a request may have are numbered: sparse input s is 3s, its lengths 3s + 1, its weights
// 3s + 2; then the dense inputs; then sparse.values, sparse.lengths and sparse.weights; then
// lengths of whole sequences, but those with a sparse input's name, whose lengths they are. Weights
// without a name are left to the portable reader. A feature is a sparse input in one of its tables:
// several may be copies of one input. The numbers of a sequence are a sparse input too: the bits of
// each are an id of a table of 2^32 rows.
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
  const std::int32_t* policies;       // [features]: `Policy`
  const std::int64_t* paddings;       // [features]: an id that is left out, or -1
  const std::int64_t* step_starts;    // [features + 1]: the steps of their ids
  const std::int32_t* operations;     // [steps]: `IdOperation`
  const std::int64_t* operands;       // [steps]: positive where they divide
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
  std::int64_t has_numbers;           // some input has
  const std::int64_t* longest;        // [features]: of a sequence's first feature, its longest
                                      // length; else 0
  const std::uint8_t* computed_once;  // [features]: the tower computes its sequence once a request
  std::int64_t has_sequences;
  std::int64_t max_inputs;              // tensors of a request, or features of a PredictRequest
  const MessageLimits* message_limits;  // of a ModelInferRequest with typed contents

  std::int64_t inputs() const;
  // The number of sparse.values.
  std::int64_t all_at_once() const;
  // A feature's rows are not pooled.
  bool in_sequence(std::int64_t feature) const;
  // Numbers that come with an id of an input, or 0.
  std::int64_t numbers_of(std::int64_t input) const;
  // Values of a sparse input for each of its lengths' ids.
  std::int64_t values_of_id(std::int64_t source) const;
  // An input may be BYTES.
  bool takes_strings(std::int64_t input) const;
  bool is_named(std::int64_t input) const;
  bool has_name(std::int64_t input, Bytes name) const;
  // The slot that has a name's input, or the free one where it would be.
  std::int64_t slot_of(Bytes name) const;
};

extern "C" {

// Fills the slots, which are all -1.
EXPORTED_KEEPING_GIL void sharded_infer_index_names(const Model* model);
}

}  // namespace sharded_infer
