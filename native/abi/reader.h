// Requests that compiled code reads; see reader/request.h.
#pragma once
#include <cstdint>

namespace sharded_infer {

// One jagged batch; places are in 8-byte words of the memory that `Request::fill` is given.
struct Group {
  std::int64_t features;
  std::int64_t bags;  // a feature; 0: the group does not exist
  std::int64_t ids;   // by `scan` room for those that came, after `fill` those that stayed
  std::int64_t weighted;
  std::int64_t lengths_at, values_at, weights_at;
};

struct Layout {
  std::int64_t batch;
  std::int64_t words;        // of memory that `fill` needs
  std::int64_t ids_outside;  // that `fill` dropped or wrapped, and unknown raw ids
  std::int64_t at_once;
  std::int64_t gaps;  // -1 stands in place of ids in sequences
  Group groups[2];    // one bag a sample, one bag for all
};

}  // namespace sharded_infer
