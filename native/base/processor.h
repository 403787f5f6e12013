// Features of a processor, as far as the system keeps the registers for them.
//
// Not the compiler's __builtin_cpu_supports: it is a part of the compiler's own library, and in
// Zig's it says no to everything. Bits: Intel's manual, volume 2, CPUID, and volume 1, 13.3 (XCR0).
#pragma once
#include <cstdint>
#if defined(__x86_64__)
#include <cpuid.h>

#include <cstring>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace sharded_infer {

// Bits of `Feature` in kernels/machine.py. AVX-512 is F, DQ, BW and VL.
enum ProcessorFeature : std::uint32_t {
  kHasAvx2 = 1,
  kHasAvxVnni = 2,
  kHasAvx512 = 4,
  kHasVnni = 8,
  kHasBf16 = 16,
  kHasFp16 = 32,
  kHasAmxInt8 = 64,
  kHasAmxBf16 = 128,
  kHasAmxFp16 = 256,
};

struct Processor {
  bool is_intel;
  std::uint32_t features;
};

#if defined(__x86_64__)
inline Processor examine_processor() {
  Processor found{};
  unsigned a, b, c, d, most;
  if (!__get_cpuid(0, &most, &b, &c, &d)) return found;
  const unsigned vendor[] = {b, d, c};
  found.is_intel = std::memcmp(vendor, "GenuineIntel", sizeof vendor) == 0;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return found;
  const auto bit = [](unsigned word, int number) { return (word >> number & 1) != 0; };
  const bool fma = bit(c, 12), saves = bit(c, 27), avx = bit(c, 28), f16c = bit(c, 29);
  if (!saves || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return found;
  std::uint32_t kept, high;
  __asm__("xgetbv" : "=a"(kept), "=d"(high) : "c"(0));
  const auto keeps = [&](std::uint32_t registers) { return (kept & registers) == registers; };
  if (!(avx && fma && f16c && bit(b, 5) && keeps(0x6))) return found;
  const bool avx512 = bit(b, 16) && bit(b, 17) && bit(b, 30) && bit(b, 31) && keeps(0xe6);
  const bool tiles = keeps(0x60000);
  found.features = kHasAvx2 | (avx512 ? kHasAvx512 : 0) | (avx512 && bit(c, 11) ? kHasVnni : 0) |
                   (avx512 && bit(d, 23) ? kHasFp16 : 0) | (tiles && bit(d, 22) ? kHasAmxBf16 : 0) |
                   (tiles && bit(d, 25) ? kHasAmxInt8 : 0);
  if (__get_cpuid_count(7, 1, &a, &b, &c, &d))
    found.features |= (bit(a, 4) ? kHasAvxVnni : 0) | (avx512 && bit(a, 5) ? kHasBf16 : 0) |
                      (tiles && bit(a, 21) ? kHasAmxFp16 : 0);
  return found;
}
#elif defined(__aarch64__) && defined(__linux__)
// Bits: HWCAP_ASIMDHP, HWCAP_ASIMDDP and HWCAP2_BF16 of Linux's asm/hwcap.h.
inline Processor examine_processor() {
  const unsigned long first = getauxval(AT_HWCAP), second = getauxval(AT_HWCAP2);
  return {false, (first >> 10 & 1 ? kHasFp16 : 0u) | (first >> 20 & 1 ? kHasVnni : 0u) |
                     (second >> 14 & 1 ? kHasBf16 : 0u)};
}
#else
inline Processor examine_processor() { return {}; }
#endif

inline const Processor& processor() {
  static const Processor found = examine_processor();
  return found;
}

inline std::uint32_t features() { return processor().features; }

}  // namespace sharded_infer
