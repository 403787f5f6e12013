// The clock of Python's time.monotonic, in seconds.
#pragma once
#include <time.h>

namespace sharded_infer {

inline double monotonic() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return double(now.tv_sec) + 1e-9 * double(now.tv_nsec);
}

}  // namespace sharded_infer
