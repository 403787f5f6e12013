// Reads of aligned blocks of files: one queue for a whole process, with many reads at the disk at
// once.
//
//     start     reads wait in order; the first kQueueDepth of them are with the kernel
//     finished  called by a thread of the reader, once for each read
//
// io_uring carries them where the kernel allows it, else threads that each read one block (pread).
// A read that never returns keeps its buffer and its place in the queue, and no thread of a caller.
#pragma once
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "abi/tiers.h"

namespace sharded_infer {

constexpr std::int64_t kBlockBytes = 4096;

// Where the block of a byte begins.
inline std::int64_t block_of(std::int64_t byte) { return byte / kBlockBytes * kBlockBytes; }

using Clock = std::chrono::steady_clock;

// A disk that has finished none of its reads for so long has stalled. One lookup in a while still
// asks it, so that its recovery is seen; the others are refused at once.
constexpr std::chrono::seconds kStalledAfter{2}, kAsksAgainAfter{1};

// A file whose blocks are read past the page cache; where its file system refuses that, they are
// dropped from it.
struct BlockFile {
  int descriptor;
  bool is_direct;
};

class BlockRead {
 public:
  BlockRead(BlockFile file, std::int64_t offset, std::int64_t bytes)
      : file(file), offset(offset), bytes(bytes) {}
  virtual ~BlockRead() { std::free(buffer); }
  BlockRead(const BlockRead&) = delete;
  BlockRead& operator=(const BlockRead&) = delete;

  // error: errno, or 0; the file has ended where `length` is less than `bytes`.
  virtual void finished(int error) = 0;

  // Takes what a read returned: bytes, or a negative errno. Whether the rest must be asked for
  // again.
  bool goes_on(std::int64_t result, int* error);

  const BlockFile file;
  const std::int64_t offset, bytes;  // multiples of kBlockBytes
  std::uint8_t* buffer =
      nullptr;              // there while the read is with the kernel, and when it has finished
  std::int64_t length = 0;  // read so far
  Clock::time_point asked;
};

class BlockReader {
 public:
  virtual ~BlockReader() = default;
  virtual const char* name() const = 0;

  void start(std::vector<std::unique_ptr<BlockRead>> reads);

  // Whether the disk has stalled, and it is too early to ask it again.
  bool refuses();

  // Reads that wait or are with the kernel.
  std::int64_t queued() const;

 protected:
  virtual void wake() = 0;  // reads have been added

  // The next read, with a buffer; null: none waits, or as many as may are with the kernel.
  std::unique_ptr<BlockRead> take();

  void end(std::unique_ptr<BlockRead> read, int error);

 private:
  mutable std::mutex mutex_;
  std::deque<std::unique_ptr<BlockRead>> waiting_;
  std::int64_t with_kernel_ = 0;
  Clock::time_point asked_again_;
  Clock::time_point progressed_;  // when a read finished last, or the first was asked
};

// The reader of this process, made at its first use: a process that was forked has one of its own.
BlockReader& block_reader();

std::unique_ptr<BlockReader>
make_uring_reader();  // null: the kernel, or a filter of its calls, refuses it
std::unique_ptr<BlockReader> make_thread_reader();

}  // namespace sharded_infer
