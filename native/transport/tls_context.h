// An OpenSSL context, made anew when its files have changed.
#pragma once
#include <sys/stat.h>

#include <array>
#include <stdexcept>
#include <string>
#include <utility>

#include "openssl.h"

namespace sharded_infer::transport {

class TlsContext {
 public:
  // Those that are not there have empty names.
  using Files = std::array<std::string, 3>;
  // Gives a context its files and all else that is its own; false where OpenSSL refuses.
  using Configure = bool (*)(const openssl::Library&, openssl::Context*, const Files&);

  // Throws std::runtime_error where the files cannot be used.
  TlsContext(const openssl::Library& library, const openssl::Method* method, Files files,
             Configure configure)
      : library_(library),
        method_(method),
        files_(std::move(files)),
        configure_(configure),
        seen_(signature()),
        context_(make()) {}
  ~TlsContext() { library_.context_free(context_); }
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  // A new connection's state, or null; files that have changed are used from here on, if they are
  // valid.
  openssl::Ssl* connection() {
    const Signature now = signature();
    if (now != seen_) {
      seen_ = now;
      try {
        openssl::Context* fresh = make();
        library_.context_free(context_);
        context_ = fresh;
      } catch (const std::runtime_error&) {
        // Files are replaced one after another: the next change is looked at again.
      }
    }
    return library_.ssl_new(context_);
  }

  static bool use_certificate(const openssl::Library& library, openssl::Context* context,
                              const std::string& certificate, const std::string& key) {
    return library.use_chain(context, certificate.c_str()) == 1 &&
           library.use_key(context, key.c_str(), openssl::kPem) == 1 &&
           library.check_key(context) == 1;
  }

 private:
  using Signature = std::array<long, 9>;

  Signature signature() const {
    Signature found{};
    for (std::size_t at = 0; at < files_.size(); ++at) {
      struct stat about;
      if (files_[at].empty() || stat(files_[at].c_str(), &about) != 0) continue;
      found[3 * at] = about.st_mtim.tv_sec * 1000000000L + about.st_mtim.tv_nsec;
      found[3 * at + 1] = long(about.st_size);
      found[3 * at + 2] = long(about.st_ino);
    }
    return found;
  }

  openssl::Context* make() const {
    // Of anything else, such as a FIFO, OpenSSL would wait for an end.
    struct stat about;
    for (const std::string& name : files_)
      if (!name.empty() && (stat(name.c_str(), &about) != 0 || !S_ISREG(about.st_mode)))
        throw std::runtime_error(name + " is no regular file");
    library_.clear_errors();
    openssl::Context* context = library_.context_new(method_);
    if (context == nullptr) throw std::runtime_error(library_.last_error());
    library_.context_control(context, openssl::kSetLeastVersion, openssl::kTls12, nullptr);
    library_.context_control(context, openssl::kSetMode, openssl::kModes, nullptr);
    library_.set_options(context, openssl::kNoCompression | openssl::kNoRenegotiation);
    // Without this OpenSSL asks the terminal.
    library_.set_password(context, [](char*, int, int, void*) { return 0; });
    if (configure_(library_, context, files_)) return context;
    const std::string reason = library_.last_error();
    library_.context_free(context);
    throw std::runtime_error(reason);
  }

  const openssl::Library& library_;
  const openssl::Method* const method_;
  const Files files_;
  const Configure configure_;
  Signature seen_;
  openssl::Context* context_;
};

}  // namespace sharded_infer::transport
