// Settings of a load, and records of its calls.
#pragma once
#include <limits>

#include "abi/load.h"

namespace sharded_infer::load {

constexpr double kNever = std::numeric_limits<double>::infinity();

}  // namespace sharded_infer::load
