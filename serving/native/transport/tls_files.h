// The files of a TLS context, and whether they have changed.
#pragma once
#include <sys/stat.h>

#include <array>
#include <stdexcept>
#include <string>

namespace sharded_infer::transport {

class TlsFiles {
 public:
  // Those that are not there have empty names.
  explicit TlsFiles(std::array<std::string, 3> names)
      : names_(std::move(names)), seen_(signature()) {}

  const std::string& operator[](std::size_t at) const { return names_[at]; }

  // Since this was last asked.
  bool have_changed() {
    const Signature now = signature();
    const bool changed = now != seen_;
    seen_ = now;
    return changed;
  }

  // Throws std::runtime_error: of anything else, such as a FIFO, OpenSSL would wait for an end.
  void require_regular() const {
    struct stat about;
    for (const std::string& name : names_)
      if (!name.empty() && (stat(name.c_str(), &about) != 0 || !S_ISREG(about.st_mode)))
        throw std::runtime_error(name + " is no regular file");
  }

  // Without this OpenSSL asks the terminal.
  static int no_password(char*, int, int, void*) { return 0; }

 private:
  using Signature = std::array<long, 9>;

  Signature signature() const {
    Signature found{};
    for (std::size_t at = 0; at < names_.size(); ++at) {
      struct stat about;
      if (names_[at].empty() || stat(names_[at].c_str(), &about) != 0) continue;
      found[3 * at] = about.st_mtim.tv_sec * 1000000000L + about.st_mtim.tv_nsec;
      found[3 * at + 1] = long(about.st_size);
      found[3 * at + 2] = long(about.st_ino);
    }
    return found;
  }

  std::array<std::string, 3> names_;
  Signature seen_;
};

}  // namespace sharded_infer::transport
