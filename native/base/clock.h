// Clocks, in seconds.
#pragma once
#include <time.h>

namespace sharded_infer {

inline double clock_seconds(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return double(now.tv_sec) + 1e-9 * double(now.tv_nsec);
}

// That of Python's time.monotonic.
inline double monotonic() { return clock_seconds(CLOCK_MONOTONIC); }

}  // namespace sharded_infer
