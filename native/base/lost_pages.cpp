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
#include <atomic>
#include <csignal>
#include <cstdint>
#include <mutex>
#include <sys/mman.h>
#include <unistd.h>

#include "abi/lost_pages.h"

namespace sharded_infer {
namespace {

// Table files of all versions that a process has mapped at once.
constexpr std::int32_t kMost = 1 << 16;

// The handler reads places that others write: `begin` is set last, and cleared first.
struct Place {
  std::atomic<std::uintptr_t> begin{0}, end{0};
  std::int32_t mark = 0;
};

Place places[kMost];
std::atomic<std::int32_t> used{0};
std::mutex registering;
struct sigaction previous;
bool installed = false;
std::uintptr_t page_bytes = 0;

// Runs in a signal: no lock, no allocation.
void on_bus_error(int number, siginfo_t* info, void* context) {
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  // What a process was sent (kill) has no address.
  const std::int32_t count = info->si_code > 0 ? used.load(std::memory_order_acquire) : 0;
  for (std::int32_t at = 0; at < count; ++at) {
    const std::uintptr_t begin = places[at].begin.load(std::memory_order_acquire);
    const std::uintptr_t end = places[at].end.load(std::memory_order_relaxed);
    if (begin == 0 || address < begin || address >= end) continue;
    // Marked first: whoever reads the zeros finds the mark.
    __atomic_store_n(&places[at].mark, 1, __ATOMIC_SEQ_CST);
    const std::uintptr_t page = address & ~(page_bytes - 1);
    void* const there = reinterpret_cast<void*>(page);
    if (mmap(there, end - page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE,
             -1, 0) == there)
      return;
  }
  if (previous.sa_flags & SA_SIGINFO) return previous.sa_sigaction(number, info, context);
  if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN)
    return previous.sa_handler(number);
  // As if nobody had handled it: the load is repeated, and ends the process.
  signal(number, SIG_DFL);
  if (info->si_code <= 0) raise(number);
}

bool install() {
  if (installed) return true;
  page_bytes = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  struct sigaction action = {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  installed = sigaction(SIGBUS, &action, &previous) == 0;
  return installed;
}

}  // namespace
}  // namespace sharded_infer

using namespace sharded_infer;

extern "C" {

std::int32_t sharded_infer_guard(const std::uint8_t* begin, std::int64_t bytes) {
  const std::lock_guard<std::mutex> lock(registering);
  if (!install()) return -1;
  std::int32_t at = 0;
  const std::int32_t count = used.load(std::memory_order_relaxed);
  while (at < count && places[at].end.load(std::memory_order_relaxed) != 0) ++at;
  if (at == kMost) return -1;
  const auto first = reinterpret_cast<std::uintptr_t>(begin);
  places[at].mark = 0;
  places[at].end.store(first + static_cast<std::uintptr_t>(bytes), std::memory_order_relaxed);
  places[at].begin.store(first, std::memory_order_release);
  if (at == count) used.store(count + 1, std::memory_order_release);
  return at;
}

std::int32_t* sharded_infer_mark_of(std::int32_t place) { return &places[place].mark; }

void sharded_infer_unguard(std::int32_t place) {
  const std::lock_guard<std::mutex> lock(registering);
  places[place].begin.store(0, std::memory_order_release);
  places[place].end.store(0, std::memory_order_relaxed);
}
}
