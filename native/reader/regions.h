// Registered regions of system shared memory; serving/shared_memory/ is the reference.
//
// They are read and written by system calls: a client may truncate its object at any time, which
// would end a process that has mapped it (SIGBUS).
#pragma once
#include <string>
#include <unordered_map>
#include <vector>

#include "abi/reader.h"
#include "parameter.h"

namespace sharded_infer {

class Regions {
 public:
  // `most_bytes` bounds the inputs of a request.
  void set(const SharedRegion* regions, std::int64_t count, std::int64_t most_bytes);
  std::int64_t most_bytes() const { return most_bytes_; }

  // True for a span inside a registered region.
  bool holds(const Span& span) const { return find(span) != nullptr; }
  // Appends a copy of a span. False where it is not held, or its object was replaced or is shorter.
  bool read(const Span& span, std::vector<std::uint8_t>& to) const;
  // Writes the first bytes of a span; false as `read`, or where they have no room in it.
  bool write(const Span& span, Bytes data) const;

 private:
  struct Region {
    std::string path;
    std::int64_t offset, bytes;
    std::uint64_t device, inode;
  };

  const Region* find(const Span& span) const;

  std::unordered_map<std::string, Region> by_name_;
  std::int64_t most_bytes_ = 0;
};

}  // namespace sharded_infer
