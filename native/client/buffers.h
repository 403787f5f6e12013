// Memory of answers, which goes to the caller and comes back to be used again.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <vector>

namespace sharded_infer::client {

class Buffers {
 public:
  Buffers() = default;
  ~Buffers() {
    for (std::uint8_t* data : spare_) std::free(data - kHead);
  }
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;

  // Aligned memory of at least so many bytes; null where there is none.
  std::uint8_t* take(std::size_t bytes) {
    const auto fits = [bytes](const std::uint8_t* one) { return capacity(one) >= bytes; };
    const auto found = std::find_if(spare_.rbegin(), spare_.rend(), fits);
    if (found != spare_.rend()) {
      std::uint8_t* data = *found;
      spare_.erase(std::next(found).base());
      spare_bytes_ -= capacity(data);
      return data;
    }
    const std::size_t rounded = std::max(kLeastBytes, (bytes + kHead - 1) / kHead * kHead);
    auto* memory = static_cast<std::uint8_t*>(std::aligned_alloc(kHead, kHead + rounded));
    if (memory == nullptr) return nullptr;
    new (memory) std::size_t(rounded);
    return memory + kHead;
  }

  void give_back(std::uint8_t* data) {
    if (spare_bytes_ + capacity(data) > kMostSpareBytes || spare_.size() >= kMostSpare) {
      std::free(data - kHead);
      return;
    }
    spare_bytes_ += capacity(data);
    spare_.push_back(data);
  }

 private:
  static constexpr std::size_t kHead = 64, kLeastBytes = 4 << 10;
  static constexpr std::size_t kMostSpareBytes = 64 << 20, kMostSpare = 256;

  static std::size_t capacity(const std::uint8_t* data) {
    return *reinterpret_cast<const std::size_t*>(data - kHead);
  }

  std::vector<std::uint8_t*> spare_;
  std::size_t spare_bytes_ = 0;
};

}  // namespace sharded_infer::client
