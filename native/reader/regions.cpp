// See regions.h.
#include "regions.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace sharded_infer {
namespace {

class ObjectFile {
 public:
  // A link would lead out of the folder of objects, and a pipe would block.
  explicit ObjectFile(const std::string& path)
      : file_(open(path.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK)) {}
  ~ObjectFile() {
    if (file_ >= 0) close(file_);
  }
  ObjectFile(const ObjectFile&) = delete;
  ObjectFile& operator=(const ObjectFile&) = delete;

  // True for the object with this identity and at least `bytes`.
  bool is(std::uint64_t device, std::uint64_t inode, std::int64_t bytes) const {
    struct stat status{};
    return file_ >= 0 && fstat(file_, &status) == 0 && S_ISREG(status.st_mode) &&
           status.st_dev == device && status.st_ino == inode && status.st_size >= bytes;
  }

  bool read(std::uint8_t* to, std::int64_t bytes, std::int64_t at) const {
    return each_part(bytes, [&](std::int64_t done) {
      return pread(file_, to + done, std::size_t(bytes - done), at + done);
    });
  }

  bool write(Bytes data, std::int64_t at) const {
    return each_part(data.size, [&](std::int64_t done) {
      return pwrite(file_, data.data + done, std::size_t(data.size - done), at + done);
    });
  }

 private:
  template <class Transfer>
  static bool each_part(std::int64_t bytes, Transfer transfer) {
    for (std::int64_t done = 0; done < bytes;) {
      const ssize_t count = transfer(done);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) return false;
      done += count;
    }
    return true;
  }

  const int file_;
};

}  // namespace

void Regions::set(const SharedRegion* regions, std::int64_t count, std::int64_t most_bytes) {
  by_name_.clear();
  for (std::int64_t at = 0; at < count; ++at) {
    const SharedRegion& from = regions[at];
    by_name_[{from.name, std::size_t(from.name_bytes)}] = {from.path, from.offset, from.byte_size,
                                                           from.device, from.inode};
  }
  most_bytes_ = most_bytes;
}

const Regions::Region* Regions::find(const Span& span) const {
  const auto* name = reinterpret_cast<const char*>(span.region.data);
  const auto found = by_name_.find({name, std::size_t(span.region.size)});
  if (found == by_name_.end()) return nullptr;
  const Region& region = found->second;
  // The difference cannot overflow: no number is below 0.
  return span.bytes <= region.bytes - span.begin() ? &region : nullptr;
}

bool Regions::read(const Span& span, std::vector<std::uint8_t>& to) const {
  const Region* region = find(span);
  if (region == nullptr) return false;
  const std::int64_t at = region->offset + span.begin();
  const ObjectFile file(region->path);
  // Checked before there is memory for missing bytes.
  if (!file.is(region->device, region->inode, at + span.bytes)) return false;
  const std::size_t begin = to.size();
  to.resize(begin + std::size_t(span.bytes));
  return file.read(to.data() + begin, span.bytes, at);
}

bool Regions::write(const Span& span, Bytes data) const {
  const Region* region = find(span);
  if (region == nullptr || data.size > span.bytes) return false;
  const std::int64_t at = region->offset + span.begin();
  const ObjectFile file(region->path);
  return file.is(region->device, region->inode, at + data.size) && file.write(data, at);
}

}  // namespace sharded_infer
