#include "parts.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

namespace sharded_infer {
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

}  // namespace

std::int64_t select_bags(const Selection& selection, const BagArrays& from, const BagArrays& to) {
  const std::int64_t bags = selection.bags;
  // First id of each feature, and the end of the last.
  std::vector<std::int64_t> starts(static_cast<std::size_t>(selection.features) + 1);
  for (std::int64_t feature = 0; feature < selection.features; ++feature) {
    const std::int64_t* lengths = from.lengths + feature * bags;
    starts[feature + 1] = std::accumulate(lengths, lengths + bags, starts[feature]);
  }
  std::int64_t kept = 0;
  for (std::int64_t entry = 0; entry < selection.entries; ++entry) {
    const std::int64_t feature = selection.positions[entry];
    const std::int64_t* from_lengths = from.lengths + feature * bags;
    std::int64_t* to_lengths = to.lengths + entry * bags;
    std::int64_t at = starts[feature];
    if (selection.first_rows == nullptr) {
      const std::int64_t end = starts[feature + 1];
      std::copy(from_lengths, from_lengths + bags, to_lengths);
      std::copy(from.values + at, from.values + end, to.values + kept);
      if (from.weights != nullptr) std::copy(from.weights + at, from.weights + end, to.weights + kept);
      kept += end - at;
      continue;
    }
    const std::int64_t first = selection.first_rows[entry];
    const std::uint64_t rows = static_cast<std::uint64_t>(selection.last_rows[entry] - first);
    for (std::int64_t bag = 0; bag < bags; ++bag) {
      const std::int64_t before = kept;
      for (const std::int64_t end = at + from_lengths[bag]; at < end; ++at) {
        const std::int64_t local = from.values[at] - first;
        // A negative number is a huge one without its sign.
        if (static_cast<std::uint64_t>(local) >= rows) continue;
        if (from.weights != nullptr) to.weights[kept] = from.weights[at];
        to.values[kept++] = local;
      }
      to_lengths[bag] = kept - before;
    }
  }
  return kept;
}

std::int64_t write_runs(const Matrix& found, const std::int64_t* repeats, const ColumnRun* runs,
                        std::int64_t run_count, const Matrix& pooled) {
  const std::int64_t all = found.rows == pooled.rows ? 1 : pooled.rows;
  std::int64_t written = 0;
  for (std::int64_t row = 0; row < found.rows; ++row) {
    const std::int64_t end = written + (repeats == nullptr ? all : repeats[row]);
    if (end > pooled.rows) return end;
    const float* from = found.numbers + row * found.stride;
    for (; written < end; ++written)
      write_row(from, runs, run_count, pooled.numbers + written * pooled.stride);
  }
  return written;
}

std::int64_t divide_means(const std::int64_t* lengths, std::int64_t bags, const std::int64_t* repeats,
                          const Mean* means, std::int64_t mean_count, const Matrix& pooled) {
  const std::int64_t all = bags == pooled.rows ? 1 : pooled.rows;
  std::int64_t divided = 0;
  for (std::int64_t bag = 0; bag < bags; ++bag) {
    const std::int64_t end = divided + (repeats == nullptr ? all : repeats[bag]);
    if (end > pooled.rows) return end;
    for (; divided < end; ++divided) {
      float* row = pooled.numbers + divided * pooled.stride;
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

}  // namespace sharded_infer
