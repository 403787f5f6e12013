// Files that are mapped, whose pages may be lost; see base/lost_pages.cpp.
#pragma once
#include <cstdint>

#include "abi/exported.h"

extern "C" {

// Registers a mapping. Returns its place, or -1: there is none left, or the handler cannot be set.
EXPORTED std::int32_t sharded_infer_guard(const std::uint8_t begin[], std::int64_t bytes);

// The mark of a place: not 0 when pages of it were lost.
EXPORTED std::int32_t* sharded_infer_mark_of(std::int32_t place);

// Gives a place back, before the mapping goes.
EXPORTED void sharded_infer_unguard(std::int32_t place);
}
