// Blocks read by threads: where io_uring is not allowed.
#include "block_reader.h"

#include <cerrno>
#include <condition_variable>
#include <thread>
#include <unistd.h>

namespace sharded_infer {
namespace {

constexpr int kThreads = 32;

class ThreadReader : public BlockReader {
 public:
  ThreadReader() {
    for (int count = 0; count < kThreads; ++count) std::thread([this] { run(); }).detach();
  }

  const char* name() const override { return "threads"; }

 protected:
  void wake() override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ++added_;
    }
    came_.notify_all();
  }

 private:
  void run() {
    for (std::int64_t seen = 0;;) {
      while (std::unique_ptr<BlockRead> read = take()) carry(std::move(read));
      std::unique_lock<std::mutex> lock(mutex_);
      came_.wait(lock, [&] { return added_ != seen; });
      seen = added_;
    }
  }

  void carry(std::unique_ptr<BlockRead> read) {
    int error = 0;
    for (bool more = true; more;) {
      const ssize_t count =
          pread(read->file.descriptor, read->buffer + read->length,
                static_cast<std::size_t>(read->bytes - read->length), read->offset + read->length);
      more = read->goes_on(count < 0 ? -errno : count, &error);
    }
    end(std::move(read), error);
  }

  std::mutex mutex_;
  std::condition_variable came_;
  std::int64_t added_ = 0;
};

}  // namespace

std::unique_ptr<BlockReader> make_thread_reader() { return std::make_unique<ThreadReader>(); }

}  // namespace sharded_infer
