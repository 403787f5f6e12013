// Merges held calls of one version into one batch; sharded_infer/inputs/merge.py is the reference.
#pragma once
#include "held_call.h"

namespace sharded_infer::calls {

// Lays the batch out: in its second group each call has a bag for all of its samples. False where
// the calls do not share the same features. `dense_at` gets the place of each dense input, in
// words.
bool lay_out_merge(HeldCall* const* calls, std::int64_t count, Layout& merged,
                   std::int64_t* dense_at);
// Writes what was laid out into `words`, and the calls' batch sizes into `sizes`.
void merge(HeldCall* const* calls, std::int64_t count, const Layout& merged,
           const std::int64_t* dense_at, std::int64_t* words, std::int64_t* sizes);

}  // namespace sharded_infer::calls
