#include "row_tier.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <new>
#include <sys/mman.h>
#include <unistd.h>

namespace sharded_infer {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::int64_t kLoadBytes = 4 * 1024 * 1024;

}  // namespace

RowTier::RowTier(const TierSettings& settings)
    : settings_(settings),
      cache_(static_cast<std::uint32_t>(settings.cached_rows)),
      process_(getpid()) {
  const auto bytes =
      static_cast<std::size_t>((settings.hot_rows + settings.cached_rows) * settings.row_bytes);
  arena_bytes_ = (bytes + kHugePage - 1) / kHugePage * kHugePage + kHugePage;
  void* const memory =
      mmap(nullptr, arena_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  // It begins where a huge page does; the rest is given back.
  auto* const begin = static_cast<std::uint8_t*>(memory);
  const std::size_t before = kHugePage - reinterpret_cast<std::uintptr_t>(begin) % kHugePage;
  arena_ = begin + before;
  arena_bytes_ -= kHugePage;
  munmap(begin, before);
  if (before < kHugePage) munmap(arena_ + arena_bytes_, kHugePage - before);
  madvise(arena_, arena_bytes_, MADV_HUGEPAGE);
}

RowTier::~RowTier() {
  munmap(arena_, arena_bytes_);
  close(settings_.descriptor);
}

int RowTier::load(std::int64_t first, std::int64_t count) {
  std::int64_t at = begin_of(first);
  const std::int64_t end = begin_of(first + count);
  void* memory = nullptr;
  if (posix_memalign(&memory, kBlockBytes, kLoadBytes) != 0) return ENOMEM;
  const std::unique_ptr<void, void (*)(void*)> held(memory, std::free);
  const auto* const bytes = static_cast<const std::uint8_t*>(memory);
  while (at < end) {
    const std::int64_t from = block_of(at);
    const std::int64_t wanted = std::min(kLoadBytes, block_of(end - from + kBlockBytes - 1));
    const ssize_t got = pread(settings_.descriptor, memory, static_cast<std::size_t>(wanted), from);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno;
    const std::int64_t until = std::min(end, from + got);
    if (until <= at) return ENODATA;
    std::memcpy(arena_ + (at - settings_.offset), bytes + (at - from),
                static_cast<std::size_t>(until - at));
    if (!settings_.is_direct) posix_fadvise(settings_.descriptor, from, got, POSIX_FADV_DONTNEED);
    at = until;
  }
  return 0;
}

TierCounts RowTier::counts() const {
  const auto of = [](const std::atomic<std::int64_t>& count) {
    return count.load(std::memory_order_relaxed);
  };
  TierCounts found{of(counted_.hot),          of(counted_.cached),
                   of(counted_.missed),       of(counted_.unplaced),
                   of(counted_.reads),        of(counted_.read_bytes),
                   of(counted_.failed_reads), of(counted_.used_slots),
                   of(counted_.nanoseconds),  {}};
  for (int bucket = 0; bucket <= kLatencies; ++bucket)
    found.latencies[bucket] = of(counted_.latencies[bucket]);
  return found;
}

// Whether a row begins in the block in which another before it ends.
bool RowTier::shares_block(std::int64_t row, std::int64_t next) const {
  return block_of(begin_of(next)) <= block_of(begin_of(row + 1) - 1);
}

void RowTier::ended(const std::vector<RowToRead>& rows, const MissingRow& failure,
                    const Waiting& unplaced) {
  std::vector<Waiting> told;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const RowToRead& row : rows) {
      if (row.slot == RowCache::kNone) {
        told.push_back(unplaced);
        continue;
      }
      if (failure.why == kThere) {
        cache_.fill(row.slot);
      } else {
        cache_.lose(row.slot);
      }
      const auto found = waiting_.find(row.slot);
      told.insert(told.end(), found->second.begin(), found->second.end());
      waiting_.erase(found);
    }
  }
  for (const Waiting& one : told) {
    if (failure.why == kThere) {
      one.awaited->arrived();
    } else {
      MissingRow of_lookup = failure;
      of_lookup.tier = one.tier;
      one.awaited->failed(of_lookup);
    }
  }
}

// Reads that a parent process had asked for do not end in this one.
void RowTier::forget_other_process() {
  if (process_ == getpid()) return;
  process_ = getpid();
  for (const auto& [slot, waiting] : waiting_) cache_.lose(slot);
  waiting_.clear();
}

}  // namespace sharded_infer
