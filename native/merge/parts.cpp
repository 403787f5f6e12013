// The bags that ranks look up of a group of features, and where their numbers go.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

#include "base/id_index.h"

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

// A rank's numbers, and their destinations.
struct Part {
  Matrix found;
  const ColumnRun* runs;
  std::int64_t run_count;
};

// A feature whose sums are divided, and its columns.
struct Mean {
  std::int64_t feature;
  std::int64_t column;
  std::int64_t width;
};

namespace {

void write_row(const float* from, const ColumnRun* runs, std::int64_t run_count, float* to) {
  for (std::int64_t at = 0; at < run_count; ++at) {
    const ColumnRun& run = runs[at];
    const float* source = from + run.source;
    float* target = to + run.column;
    if (run.added) {
      for (std::int64_t column = 0; column < run.width; ++column) target[column] += source[column];
    } else {
      std::memcpy(target, source, static_cast<std::size_t>(run.width) * sizeof(float));
    }
  }
}

// Copies those ids of an entry's bags that `take` keeps, as it changes them, to `kept` and behind
// it; returns the end.
template <class Take>
std::int64_t copy_taken(std::int64_t at, const std::int64_t* lengths, std::int64_t bags,
                        const BagArrays& from, const BagArrays& to, std::int64_t* to_lengths,
                        std::int64_t kept, const Take& take) {
  for (std::int64_t bag = 0; bag < bags; ++bag) {
    const std::int64_t before = kept;
    for (const std::int64_t end = at + lengths[bag]; at < end; ++at) {
      std::int64_t id = from.values[at];
      if (!take(id)) continue;
      if (from.weights != nullptr) to.weights[kept] = from.weights[at];
      to.values[kept++] = id;
    }
    to_lengths[bag] = kept - before;
  }
  return kept;
}

// Fills `to` from entries of features that begin at `starts`.
Kept select(const Selection& selection, const std::int64_t* starts, std::int64_t bags,
            const BagArrays& from, const BagArrays& to) {
  std::int64_t kept = 0, bytes = 0;
  for (std::int64_t entry = 0; entry < selection.entries; ++entry) {
    const std::int64_t feature = selection.positions[entry];
    const std::int64_t* from_lengths = from.lengths + feature * bags;
    std::int64_t* to_lengths = to.lengths + entry * bags;
    const std::int64_t at = starts[feature];
    const std::int64_t kept_before = kept;
    if (selection.first_rows != nullptr) {
      const std::int64_t first = selection.first_rows[entry];
      const std::uint64_t rows = static_cast<std::uint64_t>(selection.last_rows[entry] - first);
      kept = copy_taken(at, from_lengths, bags, from, to, to_lengths, kept,
                        [first, rows](std::int64_t& id) {
                          id -= first;
                          // A negative number is a huge one without its sign.
                          return static_cast<std::uint64_t>(id) < rows;
                        });
    } else if (selection.first_hashes != nullptr) {
      const std::uint64_t first = selection.first_hashes[entry],
                          span = selection.last_hashes[entry] - first;
      kept = copy_taken(
          at, from_lengths, bags, from, to, to_lengths, kept, [first, span](std::int64_t id) {
            return hash_of_id(static_cast<std::uint64_t>(id), kPartitionSeed) - first <= span;
          });
    } else {
      const std::int64_t end = starts[feature + 1];
      std::copy(from_lengths, from_lengths + bags, to_lengths);
      std::copy(from.values + at, from.values + end, to.values + kept);
      if (from.weights != nullptr)
        std::copy(from.weights + at, from.weights + end, to.weights + kept);
      kept += end - at;
    }
    if (selection.row_bytes != nullptr) bytes += (kept - kept_before) * selection.row_bytes[entry];
  }
  return {kept, bytes};
}

// Copies or adds a part's runs. Row r of `found` goes to the next repeats[r] rows; without
// `repeats`, to row r, or to all rows if it is the only one. Returns the rows written, or what
// `repeats` asked for beyond them.
std::int64_t write_part(const Part& part, const std::int64_t* repeats, const Matrix& pooled) {
  const Matrix& found = part.found;
  const std::int64_t all = found.rows == pooled.rows ? 1 : pooled.rows;
  std::int64_t written = 0;
  for (std::int64_t row = 0; row < found.rows; ++row) {
    const std::int64_t end = written + (repeats == nullptr ? all : repeats[row]);
    if (end > pooled.rows) return end;
    const float* from = found.numbers + row * found.stride;
    for (; written < end; ++written)
      write_row(from, part.runs, part.run_count, pooled.numbers + written * pooled.stride);
  }
  return written;
}

}  // namespace
}  // namespace sharded_infer

using namespace sharded_infer;

#define EXPORTED __attribute__((visibility("default")))

extern "C" {

// Fills `to` with one rank's bags after another's; its values have room for all ids of each entry's
// feature. `from` has lengths [features, bags]; `kept` is [count].
EXPORTED void sharded_infer_select_bags(const Selection* selections, std::int64_t count,
                                        std::int64_t features, std::int64_t bags,
                                        const BagArrays* source, const BagArrays* target,
                                        Kept* kept) {
  const BagArrays& from = *source;
  BagArrays to = *target;
  // First id of each feature, and the end of the last.
  std::vector<std::int64_t> starts(static_cast<std::size_t>(features) + 1);
  for (std::int64_t feature = 0; feature < features; ++feature) {
    const std::int64_t* lengths = from.lengths + feature * bags;
    starts[feature + 1] = std::accumulate(lengths, lengths + bags, starts[feature]);
  }
  for (std::int64_t at = 0; at < count; ++at) {
    kept[at] = select(selections[at], starts.data(), bags, from, to);
    to.values += kept[at].ids;
    to.lengths += selections[at].entries * bags;
    if (to.weights != nullptr) to.weights += kept[at].ids;
  }
}

// Writes a rank's numbers, as `write_part`.
EXPORTED std::int64_t sharded_infer_write_runs(const Matrix* found, const std::int64_t* repeats,
                                               const ColumnRun* runs, std::int64_t run_count,
                                               const Matrix* pooled) {
  return write_part({*found, runs, run_count}, repeats, *pooled);
}

// Writes each part in turn. Returns the rows written, or those of the first part that is not for
// all rows.
EXPORTED std::int64_t sharded_infer_write_parts(const Part* parts, std::int64_t count,
                                                const std::int64_t* repeats, const Matrix* pooled) {
  for (std::int64_t at = 0; at < count; ++at) {
    const std::int64_t written = write_part(parts[at], repeats, *pooled);
    if (written != pooled->rows) return written;
  }
  return pooled->rows;
}

// Multiplies sums by the rounded reciprocal of their bags' lengths [features, bags], at least 1, in
// fp32. Rows and `repeats` are as above.
EXPORTED std::int64_t sharded_infer_divide_means(const std::int64_t* lengths, std::int64_t bags,
                                                 const std::int64_t* repeats, const Mean* means,
                                                 std::int64_t mean_count, const Matrix* pooled) {
  const std::int64_t all = bags == pooled->rows ? 1 : pooled->rows;
  std::int64_t divided = 0;
  for (std::int64_t bag = 0; bag < bags; ++bag) {
    const std::int64_t end = divided + (repeats == nullptr ? all : repeats[bag]);
    if (end > pooled->rows) return end;
    for (; divided < end; ++divided) {
      float* row = pooled->numbers + divided * pooled->stride;
      for (std::int64_t at = 0; at < mean_count; ++at) {
        const Mean& mean = means[at];
        const std::int64_t length = std::max<std::int64_t>(1, lengths[mean.feature * bags + bag]);
        const float reciprocal = 1.0f / static_cast<float>(length);
        float* numbers = row + mean.column;
        for (std::int64_t column = 0; column < mean.width; ++column) numbers[column] *= reciprocal;
      }
    }
  }
  return divided;
}
}
