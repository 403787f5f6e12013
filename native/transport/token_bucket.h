// A token bucket: `rate` a second, at most `burst` at once.
#pragma once
#include <algorithm>

namespace sharded_infer::transport {

class TokenBucket {
 public:
  TokenBucket(double rate, double burst) : rate_(rate), burst_(burst), left_(burst) {}

  // Takes one; the seconds until there would be one, or 0 if it was taken.
  double take(double now) {
    left_ = std::min(burst_, left_ + (now - at_) * rate_);
    at_ = now;
    if (left_ < 1.0) return (1.0 - left_) / rate_;
    left_ -= 1.0;
    return 0.0;
  }
  // Whether nothing is missing: it may be forgotten.
  bool is_full(double now) const { return left_ + (now - at_) * rate_ >= burst_; }

 private:
  double rate_, burst_, left_, at_ = 0.0;
};

}  // namespace sharded_infer::transport
