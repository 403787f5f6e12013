// About how often rows have been asked for lately: a count-min sketch of 4-bit counters that age
// (TinyLFU: Einziger, Friedman and Manes, 2017, sections 3.2 to 3.4). A row has four counters of
// one cache line; the least of them counts.
//
//     line: 126 counters of 4 bits, 1 byte: the age up to which they have been halved
//
// After kSampled additions for each row that is cached all counters are halved: each line when it
// is read next.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

namespace sharded_infer {

class FrequencySketch {
 public:
  static constexpr std::int64_t kLineBytes = 64, kRowsOfLine = 8, kSampled = 16;

  explicit FrequencySketch(std::int64_t rows)
      : lines_(static_cast<std::size_t>((rows + kRowsOfLine - 1) / kRowsOfLine + 1)),
        sample_(kSampled * rows) {}

  void fetch(std::uint64_t hash) const { __builtin_prefetch(&lines_[place(hash)], 1); }

  void add(std::uint64_t hash) {
    Line& line = aged(hash);
    const int least = least_of(line, hash);
    if (least < kMost)
      for (int number = 0; number < kCounters; ++number) {
        const unsigned at = counter(hash, number);
        // Only the least: the others have counted more rows than this one.
        if (line.get(at) == least) line.set(at, least + 1);
      }
    if (++added_ >= sample_) {
      added_ = 0;
      ++age_;
    }
  }

  int count(std::uint64_t hash) { return least_of(aged(hash), hash); }

 private:
  static constexpr int kCounters = 4, kMost = 15;

  struct alignas(kLineBytes) Line {
    std::uint8_t bytes[kLineBytes] = {};

    int get(unsigned at) const { return bytes[at / 2] >> at % 2 * 4 & 15; }
    void set(unsigned at, int to) {
      const int shift = static_cast<int>(at % 2 * 4);
      bytes[at / 2] = static_cast<std::uint8_t>((bytes[at / 2] & ~(15 << shift)) | to << shift);
    }
    std::uint8_t& age() { return bytes[kLineBytes - 1]; }
  };

  // The hash's upper half chooses the line, the lower one the counters.
  std::size_t place(std::uint64_t hash) const {
    return static_cast<std::size_t>((hash >> 32) * lines_.size() >> 32);
  }

  // One of a quarter's 32, or of the last one's 30.
  static unsigned counter(std::uint64_t hash, int number) {
    const unsigned bits = static_cast<unsigned>(hash >> 8 * number & 255);
    return static_cast<unsigned>(number) * 32 + bits % (number == kCounters - 1 ? 30 : 32);
  }

  Line& aged(std::uint64_t hash) {
    Line& line = lines_[place(hash)];
    const unsigned behind = static_cast<std::uint8_t>(age_ - line.age());
    if (behind != 0) {
      const unsigned halvings = std::min(behind, 4u);
      for (std::int64_t at = 0; at < kLineBytes - 1; ++at)
        for (unsigned count = 0; count < halvings; ++count)
          line.bytes[at] = static_cast<std::uint8_t>(line.bytes[at] >> 1 & 0x77);
      line.age() = age_;
    }
    return line;
  }

  static int least_of(const Line& line, std::uint64_t hash) {
    int least = kMost;
    for (int number = 0; number < kCounters; ++number)
      least = std::min(least, line.get(counter(hash, number)));
    return least;
  }

  std::vector<Line> lines_;
  std::int64_t sample_, added_ = 0;
  std::uint8_t age_ = 0;
};

}  // namespace sharded_infer
