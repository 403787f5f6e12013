// What an x86-64 processor has, as far as the system keeps the registers for it.
//
// Not the compiler's __builtin_cpu_supports: it is a part of the compiler's own library, and in Zig's it says no to
// everything. Bits: Intel's manual, volume 2, CPUID, and volume 1, 13.3 (XCR0).
#pragma once
#if defined(__x86_64__)
#include <cpuid.h>

#include <cstdint>
#include <cstring>

namespace sharded_infer {

struct Processor {
  bool is_intel, avx2, avx512, avx512_vnni, avx512_bf16, amx_int8, amx_bf16;
};

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
  found.avx2 = avx && fma && f16c && bit(b, 5) && keeps(0x6);
  // F, DQ, BW and VL.
  found.avx512 =
      found.avx2 && bit(b, 16) && bit(b, 17) && bit(b, 30) && bit(b, 31) && keeps(0xe6);
  found.avx512_vnni = found.avx512 && bit(c, 11);
  const bool tiles = keeps(0x60000);
  found.amx_bf16 = tiles && bit(d, 22);
  found.amx_int8 = tiles && bit(d, 25);
  found.avx512_bf16 = found.avx512 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && bit(a, 5);
  return found;
}

inline const Processor& processor() {
  static const Processor found = examine_processor();
  return found;
}

}  // namespace sharded_infer
#endif
