// Files that are mapped, and what happens where their pages are gone.
//
// A load from a mapped file beyond its present end, or from a disk that fails, raises SIGBUS, which
// ends the process. Here it is taken for mappings that were registered:
//
//     mark the mapping as broken
//     put zeros in place of its pages, from the fault to its end; the load is repeated and goes on
//
// Whoever reads such a mapping looks at its mark before the result is used. A fault elsewhere goes
// to the handler that was there before.
#pragma once
#include <cstdint>

namespace sharded_infer {

// Registers a mapping. Returns its place, or -1: there is none left, or the handler cannot be set.
std::int32_t guard(const std::uint8_t* begin, std::int64_t bytes);

// The mark of a place: not 0 when pages of it were lost.
std::int32_t* mark_of(std::int32_t place);

// Gives a place back, before the mapping goes.
void unguard(std::int32_t place);

}  // namespace sharded_infer
