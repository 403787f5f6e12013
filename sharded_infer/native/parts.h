// The bags that ranks look up of a group of features, and where their numbers go.
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
//       keep the ids in [first_rows[entry], last_rows[entry]), less first_rows[entry];
//       or the raw ids whose hashes are in [first_hashes[entry], last_hashes[entry]]
//
// With neither, all ids are kept as they are.
struct Selection {
  std::int64_t entries;
  const std::int64_t* positions;   // [entries], features
  const std::int64_t* first_rows;  // [entries] or null
  const std::int64_t* last_rows;
  const std::uint64_t* first_hashes;  // [entries] or null
  const std::uint64_t* last_hashes;
  const std::int64_t* row_bytes;  // [entries] or null
};

// What a rank looks up.
struct Kept {
  std::int64_t ids;
  std::int64_t row_bytes;  // of all these ids' rows
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

// Fills `to` with one rank's bags after another's; its values have room for all ids of each entry's
// feature. `from` has lengths [features, bags]; `kept` is [count].
void select_bags(const Selection* selections, std::int64_t count, std::int64_t features,
                 std::int64_t bags, const BagArrays& from, BagArrays to, Kept* kept);

// A rank's numbers, and their destinations.
struct Part {
  Matrix found;
  const ColumnRun* runs;
  std::int64_t run_count;
};

// Copies or adds a part's runs. Row r of `found` goes to the next repeats[r] rows; without
// `repeats`, to row r, or to all rows if it is the only one. Returns the rows written, or what
// `repeats` asked for beyond them.
std::int64_t write_part(const Part& part, const std::int64_t* repeats, const Matrix& pooled);

// Writes each part in turn. Returns the rows written, or those of the first part that is not for
// all rows.
std::int64_t write_parts(const Part* parts, std::int64_t count, const std::int64_t* repeats,
                         const Matrix& pooled);

// A feature whose sums are divided, and its columns.
struct Mean {
  std::int64_t feature;
  std::int64_t column;
  std::int64_t width;
};

// Multiplies sums by the rounded reciprocal of their bags' lengths [features, bags], at least 1, in
// fp32. Rows and `repeats` are as above.
std::int64_t divide_means(const std::int64_t* lengths, std::int64_t bags,
                          const std::int64_t* repeats, const Mean* means, std::int64_t mean_count,
                          const Matrix& pooled);

}  // namespace sharded_infer
