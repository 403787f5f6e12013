#include "results.h"

#include <algorithm>
#include <cstring>

namespace sharded_infer {
namespace {

void write_row(const float* from, const LookupPart& part, float* to) {
  for (std::int64_t at = 0; at < part.column_count; ++at) {
    const LookupColumns& columns = part.columns[at];
    const float* source = from + columns.source;
    float* target = to + columns.column;
    if (columns.added) {
      for (std::int64_t column = 0; column < columns.width; ++column)
        target[column] += source[column];
    } else {
      std::memcpy(target, source, static_cast<std::size_t>(columns.width) * sizeof(float));
    }
  }
}

// Calls `write(bag, row)` for each row of the output. Returns the rows, or where repeats ask for
// more, how many.
template <class Write>
std::int64_t for_each_row(const LookupGroup& group, const Write& write) {
  const bool is_spread = group.bags != group.rows;
  std::int64_t row = 0;
  for (std::int64_t bag = 0; bag < group.bags; ++bag) {
    const std::int64_t rows = !is_spread                 ? 1
                              : group.repeats == nullptr ? group.rows
                                                         : group.repeats[bag];
    const std::int64_t end = row + rows;
    if (end > group.rows) return end;
    for (; row < end; ++row) write(bag, group.out + row * group.stride);
  }
  return row;
}

}  // namespace

void clear_sums(const LookupGroup& group) {
  for (std::int64_t at = 0; at < group.plan->zeros_count; ++at) {
    const LookupZeros& zeros = group.plan->zeros[at];
    for (std::int64_t row = 0; row < group.rows; ++row)
      std::fill_n(group.out + row * group.stride + zeros.column, zeros.width, 0.0f);
  }
}

std::int64_t write_result(const LookupGroup& group, const LookupResult& result) {
  return for_each_row(group, [&result](std::int64_t bag, float* row) {
    write_row(result.numbers + bag * result.stride, *result.part, row);
  });
}

std::int64_t divide_means(const LookupGroup& group) {
  const LookupPlan& plan = *group.plan;
  if (plan.mean_count == 0) return group.rows;
  return for_each_row(group, [&group, &plan](std::int64_t bag, float* row) {
    for (std::int64_t at = 0; at < plan.mean_count; ++at) {
      const LookupMean& mean = plan.means[at];
      const std::int64_t length =
          std::max<std::int64_t>(1, group.lengths[mean.feature * group.bags + bag]);
      const float reciprocal = 1.0f / static_cast<float>(length);
      float* numbers = row + mean.column;
      for (std::int64_t column = 0; column < mean.width; ++column) numbers[column] *= reciprocal;
    }
  });
}

}  // namespace sharded_infer

using namespace sharded_infer;

extern "C" std::int64_t sharded_infer_lookup_merge(const LookupGroup* group,
                                                   const LookupResult* results,
                                                   std::int64_t count) {
  for (std::int64_t at = 0; at < count; ++at) {
    const std::int64_t rows = write_result(*group, results[at]);
    if (rows != group->rows) return rows;
  }
  return divide_means(*group);
}
