// Estimates a batch's run time from its samples; tests/reference/cost_table.py is its reference.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace sharded_infer::scheduler {

class CostTable {
 public:
  // `sizes` rise and are at least one; `seconds` were measured at warm-up and are positive.
  CostTable(std::vector<std::int64_t> sizes, std::vector<double> seconds)
      : sizes_(std::move(sizes)), seconds_(std::move(seconds)) {
    // No size costs more than a larger one did.
    for (std::size_t at = seconds_.size() - 1; at-- > 0;)
      seconds_[at] = std::min(seconds_[at + 1], seconds_[at]);
    at_warm_up_ = rising_ = seconds_;
    timings_.assign(sizes_.size(), 0);
    observed_.assign(sizes_.size(), -std::numeric_limits<double>::infinity());
  }

  double predicted(std::int64_t samples) const { return worked(samples) * stretch_; }

  // `cpu_seconds`: processor time of the batch's thread.
  void observe(std::int64_t samples, double seconds, double now, double cpu_seconds) {
    const double burnt = std::min(cpu_seconds, seconds);
    stretch_ +=
        kLearningRate * (std::min(seconds / std::max(burnt, 1e-9), kLargestRatio) - stretch_);
    const double off = std::min(burnt / worked(samples), kLargestRatio) - 1.0;
    const Neighbours around = neighbours(samples);
    for (int n = 0; n < around.count; ++n) {
      const std::size_t at = around.at[n];
      const double weight = around.weight[n];
      double rate = std::max(kLearningRate, 1.0 / static_cast<double>(2 + timings_[at]));
      if (off < 0.0 && now - observed_[at] > kStaleSeconds) rate = std::max(rate, kStaleRate);
      seconds_[at] *= 1.0 + rate * weight * off;
      // A size with a small weight has not been measured.
      if (weight >= 0.5) {
        observed_[at] = now;
        ++timings_[at];
      }
      for (std::size_t smaller = 0; smaller < at; ++smaller)
        seconds_[smaller] = std::min(seconds_[smaller], seconds_[at]);
    }
    forgive(samples, now);
    rising_[0] = seconds_[0];
    for (std::size_t at = 1; at < seconds_.size(); ++at)
      rising_[at] = std::max(rising_[at - 1], seconds_[at]);
  }

  // Whether no batch near this size has run for a second.
  bool is_stale(std::int64_t samples, double now) const {
    const Neighbours around = neighbours(samples);
    const int most = around.count == 2 && around.weight[1] > around.weight[0] ? 1 : 0;
    return now - observed_[around.at[most]] > kStaleSeconds;
  }

 private:
  static constexpr double kLearningRate = 0.1;
  static constexpr double kStaleRate = 0.5;
  static constexpr double kLargestRatio = 4.0;
  static constexpr double kStaleSeconds = 1.0;

  // The sizes around a batch's size, and their shares of its prediction.
  struct Neighbours {
    int count;
    std::size_t at[2];
    double weight[2];
  };

  std::size_t right_of(std::int64_t samples) const {
    return std::lower_bound(sizes_.begin(), sizes_.end(), samples) - sizes_.begin();
  }

  double share_of(std::int64_t samples, std::size_t right) const {
    return static_cast<double>(samples - sizes_[right - 1]) /
           static_cast<double>(sizes_[right] - sizes_[right - 1]);
  }

  double worked(std::int64_t samples) const { return between(rising_, samples); }

  double between(const std::vector<double>& seconds, std::int64_t samples) const {
    const std::size_t right = right_of(samples);
    if (right == sizes_.size())
      return seconds.back() * static_cast<double>(samples) / static_cast<double>(sizes_.back());
    if (right == 0 || sizes_[right] == samples) return seconds[right];
    return seconds[right - 1] + share_of(samples, right) * (seconds[right] - seconds[right - 1]);
  }

  Neighbours neighbours(std::int64_t samples) const {
    const std::size_t right = right_of(samples);
    if (right == sizes_.size()) return {1, {right - 1, 0}, {1.0, 0.0}};
    if (right == 0 || sizes_[right] == samples) return {1, {right, 0}, {1.0, 0.0}};
    const double part = share_of(samples, right) * seconds_[right] / (worked(samples) * stretch_);
    return {2, {right - 1, right}, {1.0 - part, part}};
  }

  // A size that looks expensive is avoided, and would not be measured again.
  void forgive(std::int64_t samples, double now) {
    const double learnt = between(seconds_, samples) / between(at_warm_up_, samples);
    const double ratio = std::min(learnt, kLargestRatio);
    for (std::size_t at = 0; at < seconds_.size(); ++at) {
      const double before = at_warm_up_[at];
      if (seconds_[at] > ratio * before && now - observed_[at] > kStaleSeconds)
        seconds_[at] += kLearningRate * (ratio * before - seconds_[at]);
    }
  }

  std::vector<std::int64_t> sizes_;
  std::vector<double> seconds_;
  std::vector<double> at_warm_up_;
  // The estimates: no size costs less than a smaller one.
  std::vector<double> rising_;
  double stretch_ = 1.0;
  std::vector<std::int64_t> timings_;
  std::vector<double> observed_;
};

}  // namespace sharded_infer::scheduler
