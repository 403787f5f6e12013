// Blocks read through io_uring, by its system calls alone: one thread asks for them and takes what
// came.
//
//     until the process ends:
//         move waiting reads into the submission queue
//         enter the kernel: submit, and wait for one completion (of a read, or of the eventfd that
//         `wake` writes to) take all completions
//
// Layout of the queues: io_uring(7) and io_uring_setup(2).
#include "block_reader.h"

#if defined(__linux__) && __has_include(<linux/io_uring.h>)
#include <cerrno>
#include <linux/io_uring.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>

// Equal on all architectures.
#if !defined(__NR_io_uring_setup)
#define __NR_io_uring_setup 425
#define __NR_io_uring_enter 426
#endif
#if !defined(IORING_FEAT_RW_CUR_POS)
#define IORING_FEAT_RW_CUR_POS (1U << 3)
#endif

namespace sharded_infer {
namespace {

class Ring {
 public:
  Ring() = default;
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  ~Ring() {
    if (entries_ != MAP_FAILED) munmap(entries_, entry_bytes_);
    if (completions_ != MAP_FAILED) munmap(completions_, completion_bytes_);
    if (submissions_ != MAP_FAILED) munmap(submissions_, submission_bytes_);
    if (descriptor_ >= 0) close(descriptor_);
  }

  bool open(unsigned depth) {
    io_uring_params set{};
    descriptor_ = static_cast<int>(syscall(__NR_io_uring_setup, depth, &set));
    // Linux 5.6 has both it and plain reads.
    if (descriptor_ < 0 || !(set.features & IORING_FEAT_RW_CUR_POS)) return false;
    submission_bytes_ = set.sq_off.array + set.sq_entries * sizeof(std::uint32_t);
    completion_bytes_ = set.cq_off.cqes + set.cq_entries * sizeof(io_uring_cqe);
    entry_bytes_ = set.sq_entries * sizeof(io_uring_sqe);
    submissions_ = map(submission_bytes_, IORING_OFF_SQ_RING);
    completions_ = map(completion_bytes_, IORING_OFF_CQ_RING);
    entries_ = map(entry_bytes_, IORING_OFF_SQES);
    if (submissions_ == MAP_FAILED || completions_ == MAP_FAILED || entries_ == MAP_FAILED)
      return false;
    submission_tail_ = at<std::uint32_t>(submissions_, set.sq_off.tail);
    submission_mask_ = *at<std::uint32_t>(submissions_, set.sq_off.ring_mask);
    order_ = at<std::uint32_t>(submissions_, set.sq_off.array);
    completion_head_ = at<std::uint32_t>(completions_, set.cq_off.head);
    completion_tail_ = at<std::uint32_t>(completions_, set.cq_off.tail);
    completion_mask_ = *at<std::uint32_t>(completions_, set.cq_off.ring_mask);
    completed_ = at<io_uring_cqe>(completions_, set.cq_off.cqes);
    return true;
  }

  // The caller has no more in flight than the ring has entries.
  void read(int file, void* buffer, std::int64_t bytes, std::int64_t offset, void* what) {
    const std::uint32_t tail = *submission_tail_, place = tail & submission_mask_;
    io_uring_sqe& entry = static_cast<io_uring_sqe*>(entries_)[place];
    entry = {};
    entry.opcode = IORING_OP_READ;
    entry.fd = file;
    entry.addr = reinterpret_cast<std::uintptr_t>(buffer);
    entry.len = static_cast<std::uint32_t>(bytes);
    entry.off = static_cast<std::uint64_t>(offset);
    entry.user_data = reinterpret_cast<std::uintptr_t>(what);
    order_[place] = place;
    __atomic_store_n(submission_tail_, tail + 1, __ATOMIC_RELEASE);
    ++unsubmitted_;
  }

  void enter() {
    const long count = syscall(__NR_io_uring_enter, descriptor_, unsubmitted_, 1U,
                               IORING_ENTER_GETEVENTS, nullptr, 0UL);
    if (count > 0) unsubmitted_ -= static_cast<unsigned>(count);
    // Short of memory, or interrupted: what was not submitted is submitted next time.
    if (count < 0 && errno != EINTR) usleep(1000);
  }

  template <class Take>
  void completions(const Take& take) {
    std::uint32_t head = *completion_head_;
    while (head != __atomic_load_n(completion_tail_, __ATOMIC_ACQUIRE)) {
      const io_uring_cqe found = completed_[head & completion_mask_];
      __atomic_store_n(completion_head_, ++head, __ATOMIC_RELEASE);
      take(reinterpret_cast<void*>(static_cast<std::uintptr_t>(found.user_data)), found.res);
    }
  }

 private:
  void* map(std::size_t bytes, std::int64_t what) const {
    return mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, descriptor_,
                what);
  }

  template <class Type>
  static Type* at(void* begin, std::uint32_t offset) {
    return reinterpret_cast<Type*>(static_cast<std::uint8_t*>(begin) + offset);
  }

  int descriptor_ = -1;
  void *submissions_ = MAP_FAILED, *completions_ = MAP_FAILED, *entries_ = MAP_FAILED;
  std::size_t submission_bytes_ = 0, completion_bytes_ = 0, entry_bytes_ = 0;
  std::uint32_t *submission_tail_ = nullptr, *order_ = nullptr;
  std::uint32_t *completion_head_ = nullptr, *completion_tail_ = nullptr;
  std::uint32_t submission_mask_ = 0, completion_mask_ = 0;
  io_uring_cqe* completed_ = nullptr;
  unsigned unsubmitted_ = 0;
};

class UringReader : public BlockReader {
 public:
  bool open() {
    // One more than reads: the eventfd's.
    if (!ring_.open(static_cast<unsigned>(2 * kQueueDepth))) return false;
    event_ = eventfd(0, EFD_CLOEXEC);
    if (event_ < 0) return false;
    std::thread([this] { run(); }).detach();
    return true;
  }

  const char* name() const override { return "io_uring"; }

 protected:
  void wake() override {
    const std::uint64_t one = 1;
    while (write(event_, &one, sizeof one) < 0 && errno == EINTR) {}
  }

 private:
  void run() {
    std::uint64_t events = 0;
    ring_.read(event_, &events, sizeof events, 0, nullptr);
    for (;;) {
      while (std::unique_ptr<BlockRead> read = take()) ask(read.release());
      ring_.enter();
      ring_.completions([&](void* what, std::int32_t result) {
        if (what == nullptr) {
          ring_.read(event_, &events, sizeof events, 0, nullptr);
          return;
        }
        BlockRead* const read = static_cast<BlockRead*>(what);
        int error = 0;
        if (read->goes_on(result, &error)) return ask(read);
        end(std::unique_ptr<BlockRead>(read), error);
      });
    }
  }

  void ask(BlockRead* read) {
    ring_.read(read->file.descriptor, read->buffer + read->length, read->bytes - read->length,
               read->offset + read->length, read);
  }

  Ring ring_;
  int event_ = -1;
};

}  // namespace

std::unique_ptr<BlockReader> make_uring_reader() {
  auto reader = std::make_unique<UringReader>();
  return reader->open() ? std::move(reader) : nullptr;
}

}  // namespace sharded_infer
#else
namespace sharded_infer {

std::unique_ptr<BlockReader> make_uring_reader() { return nullptr; }

}  // namespace sharded_infer
#endif
