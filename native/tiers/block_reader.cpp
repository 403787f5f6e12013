#include "block_reader.h"

#include <cerrno>
#include <fcntl.h>
#include <unistd.h>

namespace sharded_infer {

bool BlockRead::goes_on(std::int64_t result, int* error) {
  *error = 0;
  if (result == -EINTR || result == -EAGAIN) return true;
  if (result < 0) {
    *error = static_cast<int>(-result);
    return false;
  }
  length += result;
  // A direct read that ends within a block has met the file's end.
  const bool may_follow = !file.is_direct || length % kBlockBytes == 0;
  return result > 0 && length < bytes && may_follow;
}

void BlockReader::start(std::vector<std::unique_ptr<BlockRead>> reads) {
  if (reads.empty()) return;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const Clock::time_point now = Clock::now();
    if (with_kernel_ == 0 && waiting_.empty()) progressed_ = now;
    for (auto& read : reads) {
      read->asked = now;
      waiting_.push_back(std::move(read));
    }
  }
  wake();
}

bool BlockReader::refuses() {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Clock::time_point now = Clock::now();
  if (with_kernel_ == 0 || now - progressed_ <= kStalledAfter) return false;
  if (now - asked_again_ <= kAsksAgainAfter) return true;
  asked_again_ = now;
  return false;
}

std::int64_t BlockReader::queued() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return with_kernel_ + static_cast<std::int64_t>(waiting_.size());
}

std::unique_ptr<BlockRead> BlockReader::take() {
  std::unique_ptr<BlockRead> read;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (waiting_.empty() || with_kernel_ == kQueueDepth) return nullptr;
    read = std::move(waiting_.front());
    waiting_.pop_front();
    ++with_kernel_;
  }
  void* memory = nullptr;
  if (posix_memalign(&memory, kBlockBytes, static_cast<std::size_t>(read->bytes)) != 0) {
    end(std::move(read), ENOMEM);
    return take();
  }
  read->buffer = static_cast<std::uint8_t*>(memory);
  return read;
}

void BlockReader::end(std::unique_ptr<BlockRead> read, int error) {
  if (!read->file.is_direct)
    posix_fadvise(read->file.descriptor, read->offset, read->bytes, POSIX_FADV_DONTNEED);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    --with_kernel_;
    progressed_ = Clock::now();
  }
  read->finished(error);
}

BlockReader& block_reader() {
  static std::mutex mutex;
  static pid_t process = 0;
  // Never freed: their threads run until the process ends.
  static BlockReader* reader = nullptr;
  const std::lock_guard<std::mutex> lock(mutex);
  if (process != getpid()) {
    std::unique_ptr<BlockReader> made = make_uring_reader();
    reader = (made == nullptr ? make_thread_reader() : std::move(made)).release();
    process = getpid();
  }
  return *reader;
}

}  // namespace sharded_infer
