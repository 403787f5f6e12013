// The bags that one rank looks up of a group of features, and where its numbers go.
#pragma once

#include <cstdint>

namespace sharded_infer {

// Bags of ids: for each row of `lengths` [features, bags], the ids of its bags one after another.
struct BagArrays {
  std::int64_t* values;
  std::int64_t* lengths;
  float* weights;  // null: without weights
};

// The entries of a rank's lookup.
//
//   for each entry:
//     for each bag of its feature:
//       keep the ids in [first_rows[entry], last_rows[entry]), less first_rows[entry]
//
// Without `first_rows`, all ids are kept as they are.
struct Selection {
  std::int64_t features;
  std::int64_t bags;
  std::int64_t entries;
  const std::int64_t* positions;   // [entries], features
  const std::int64_t* first_rows;  // [entries] or null
  const std::int64_t* last_rows;
};

// Adjacent columns of a lookup's output with adjacent destinations.
struct ColumnRun {
  std::int64_t column;
  std::int64_t source;
  std::int64_t width;
  std::int64_t added;  // 0: overwrites
};

// fp32 [rows, columns]; `stride` is the distance of two rows, in numbers.
struct Matrix {
  float* numbers;
  std::int64_t rows;
  std::int64_t stride;
};

// Fills `to`, whose values have room for all ids of each entry's feature; returns how many it kept.
std::int64_t select_bags(const Selection& selection, const BagArrays& from, const BagArrays& to);

// Copies or adds runs. Row r of `found` goes to the next repeats[r] rows; without `repeats`, to row r, or
// to all rows if it is the only one. Returns the rows written, or what `repeats` asked for beyond them.
std::int64_t write_runs(const Matrix& found, const std::int64_t* repeats, const ColumnRun* runs,
                        std::int64_t run_count, const Matrix& pooled);

// A feature whose sums are divided, and its columns.
struct Mean {
  std::int64_t feature;
  std::int64_t column;
  std::int64_t width;
};

// Multiplies sums by the rounded reciprocal of their bags' lengths [features, bags], at least 1, in fp32.
// Rows and `repeats` are as above.
std::int64_t divide_means(const std::int64_t* lengths, std::int64_t bags, const std::int64_t* repeats,
                          const Mean* means, std::int64_t mean_count, const Matrix& pooled);

}  // namespace sharded_infer
